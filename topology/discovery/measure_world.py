"""`isthmus topo --measure`: joins the world that a launcher made, measures its links, keeps and shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from isthmus.topology.discovery.link_cache import CACHE, MeasuredLinks, document, save_links
from isthmus.topology.discovery.measure import measure_links
from isthmus.topology.launchers import rendezvous

_COMMAND = "torchrun --nproc-per-node 4 -m isthmus topo --measure"
#: For all ranks to join, and for each exchange.
_TIMEOUT = timedelta(minutes=5)
#: The slowest round over the fastest, from which on a measurement was disturbed.
_WORTH_A_SECOND_LOOK = 2.0


def measure_world(output: Path | None, console: Console, as_json: bool = False) -> None:
    """Measure, then save and print on rank 0. output: the file; None: the cache. as_json: what the file holds of it.

    Raises ValueError where no launcher made a world of ranks, or it has no tiers; OSError where nothing can be saved.
    """
    with _joined(os.environ) as rank:
        links = measure_links()
    if rank == 0:  # no other rank waits for what may fail here
        if as_json:
            print(json.dumps(document(links), indent=2))
        else:
            print_links(links, console)
        path = save_links(links, output)
        if not as_json:
            how = f"`isthmus plan --links {path if output else CACHE}`"
            console.print(f"saved in {path}, for {how}", soft_wrap=True, highlight=False)


@contextmanager
def _joined(environment: Mapping[str, str]) -> Iterator[int]:
    os.environ.update(rendezvous(environment, "--measure", _COMMAND))
    dist.init_process_group("isthmus", timeout=_TIMEOUT)
    try:
        yield dist.get_rank()
        dist.barrier()  # the store ends with the rank that hosts it
    finally:
        dist.destroy_process_group()


def print_links(links: MeasuredLinks, console: Console) -> None:
    """Print both tiers: what was fitted, each size, and how far rounds differ."""
    console.print(links.describe(), soft_wrap=True, highlight=False)
    table = Table()
    table.add_column("tier")
    for name in ("bytes at once", "us", "slowest round", "Gbit/s"):
        table.add_column(name, justify="right")
    for tier, link in (("intra: a rank", links.intra), ("inter: a node", links.inter)):
        for place, sample in enumerate(link.samples if link else ()):
            gbit_s = 8e-3 * sample.num_bytes / sample.time_us
            figures = (f"{sample.num_bytes}", f"{sample.time_us:.4g}", f"x {sample.spread:.3g}", f"{gbit_s:.4g}")
            table.add_row("" if place else tier, *figures)
        table.add_section()
    console.print(table)
    for tier, link in (("intra", links.intra), ("inter", links.inter)):
        if link:
            text = f"{tier}: {link.latency_us:.4g} us + bytes at {link.bandwidth_gbit_s:.4g} Gbit/s"
            worst = max(link.samples, key=lambda sample: sample.spread)
            text += f"; rounds differ by a factor of up to {worst.spread:.3g} ({worst.num_bytes} bytes)"
            if worst.spread > _WORTH_A_SECOND_LOOK:
                text += ": other work disturbed it, measure again where there is none"
            console.print(text, soft_wrap=True, highlight=False)
