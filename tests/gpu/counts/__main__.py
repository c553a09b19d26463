"""PYTHONPATH=tests python -m gpu.counts [2x8 ...]: print what a reduce-scatter on a GPU takes, counted without one."""

from __future__ import annotations

import sys

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from gpu.counts.chain import MACHINES, Chain, count_chains


def bytes_text(chain: Chain, *, encode: bool) -> str:
    """Return bytes an element that is coded, and how often the compulsory ones."""
    if not chain.packet_bytes:
        return ""
    moved, compulsory = chain.moved_bytes(encode=encode), chain.compulsory_bytes(encode=encode)
    elements = chain.shard_elements * (chain.num_foreign if encode else 1)
    if moved is None:
        return f"at least {compulsory / elements:.2f}"
    return f"{moved / elements:.2f} ({moved / compulsory:.2f})"


if __name__ == "__main__":
    table = Table("nodes", "codec", "launches", "bytes to encode", "to decode", "host us", box=MARKDOWN)
    for nodes in sys.argv[1:] or MACHINES:
        for chain in count_chains(nodes):
            coded = (bytes_text(chain, encode=encode) for encode in (True, False))
            table.add_row(chain.nodes, chain.codec, str(chain.num_launches), *coded, f"{chain.host_us:.0f}")
    Console(width=160, highlight=False).print(table)
