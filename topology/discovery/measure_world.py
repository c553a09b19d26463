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

from isthmus.topology.discovery.measure import MeasuredLinks, measure_links
from isthmus.topology.launchers import rendezvous

_COMMAND = "torchrun --nproc-per-node 4 -m isthmus topo --measure"
#: For all ranks to join, and for each exchange.
_TIMEOUT = timedelta(minutes=5)


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
    """Print both tiers, and the options of a plan for them."""
    for tier, link in (("within a node, a rank sends", links.intra), ("between nodes, a node sends", links.inter)):
        if link:
            text = f"{tier} {link.bandwidth_gbit_s:.4g} Gbit/s after {link.latency_us:.4g} us, over Gloo"
            console.print(text, soft_wrap=True, highlight=False)
    if links.num_hosts < min(links.num_nodes, 2):  # nodes that ISTHMUS_NODES makes of one machine
        console.print("all nodes are on one host: that is its memory, no network", highlight=False)
    console.print(f"isthmus plan {links.options()}", soft_wrap=True, highlight=False)
