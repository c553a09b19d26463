"""`isthmus topo --measure`: joins the world that a launcher made, measures its links, and shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from isthmus.topology.discovery.measure import MeasuredLinks, measure_links
from isthmus.topology.launchers import rendezvous

_COMMAND = "torchrun --nproc-per-node 4 -m isthmus topo --measure"
#: For all ranks to join, and for each exchange.
_TIMEOUT = timedelta(minutes=5)
#: The slowest round over the fastest, from which on a measurement was disturbed.
_WORTH_A_SECOND_LOOK = 2.0


def measure_world(console: Console, as_json: bool) -> None:
    """Measure, and print on rank 0, with the options of `isthmus plan` that say the same.

    Raises ValueError where no launcher made a world of ranks, or it has no tiers.
    """
    with _joined(os.environ) as rank:
        links = measure_links()
    if rank == 0 and as_json:
        print(json.dumps(asdict(links), indent=2))
    elif rank == 0:
        print_links(links, console)
        console.print(f"isthmus plan {links.options()}", soft_wrap=True, highlight=False)


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
