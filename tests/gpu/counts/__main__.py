"""PYTHONPATH=tests python -m gpu.counts [2x8 ...]: print what a reduce-scatter on a GPU takes, counted without one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from gpu.counts.counted import MACHINES, MIB, Chain
from gpu.counts.rank import count_chains

WIDTH = 160


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu.counts",
        description="Count what one reduce-scatter of a unit in bfloat16 takes on a GPU, on the fake one.",
    )
    parser.add_argument("nodes", nargs="*", default=MACHINES, metavar="2x8", help="nodes by ranks, not the same number")
    chains = [chain for nodes in parser.parse_args().nodes for chain in count_chains(nodes)]
    console = Console(width=WIDTH, highlight=False)
    console.print(summary(chains))
    return 0


def summary(chains: Sequence[Chain]) -> Table:
    """Return a row for each chain. Bytes are those of an element that is coded, and their ratio to the compulsory."""
    table = Table(
        *("nodes", "codec", "launches", "of NCCL", "encode: bytes", "decode: bytes", "host us", "waits", "allocations"),
        *("new streams", "communicators", "their MiB"),
        box=MARKDOWN,
    )
    for chain in chains:
        table.add_row(
            *(chain.nodes, chain.codec, str(chain.num_launches), str(chain.nccl_launches)),
            *(bytes_text(chain, encode=True), bytes_text(chain, encode=False), f"{chain.host_us:.0f}"),
            *(str(chain.synchronizations), str(chain.allocations), str(chain.streams)),
            *(str(len(chain.communicators)), f"{chain.memory_bytes / MIB:.0f}"),
        )
    return table


def bytes_text(chain: Chain, *, encode: bool) -> str:
    """Return bytes an element, and how often the compulsory ones."""
    if not chain.packet_bytes:
        return ""
    moved = chain.moved_bytes(encode=encode)
    compulsory = chain.compulsory_bytes(encode=encode)
    elements = chain.shard_elements * (chain.num_foreign if encode else 1)
    if moved is None:
        return f"at least {compulsory / elements:.2f}"
    return f"{moved / elements:.2f} ({moved / compulsory:.2f}x)"


if __name__ == "__main__":
    sys.exit(main())
