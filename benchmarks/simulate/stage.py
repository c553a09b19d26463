"""Simulated nodes and their ranks as what a benchmark runs on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from isthmus.benchmarks.common.stage import Place, Stage
from isthmus.benchmarks.simulate.links import interfaces_sent_bytes
from isthmus.benchmarks.simulate.network import open_network
from isthmus.benchmarks.simulate.ranks import RankWorld


@contextmanager
def simulated_stage(nodes: int, ranks_per_node: int, module: str, log_dir: Path) -> Iterator[Stage]:
    """Start ranks of `module` on simulated nodes, as `RankWorld` says. No process or namespace outlives the context."""
    with open_network(nodes) as network, RankWorld(network, ranks_per_node, module, log_dir) as world:
        yield Stage(
            world=world,
            description=network.description,
            counts_links=network.has_links,
            shape=network.shape if network.has_links else None,
        )


def join_simulated(command: dict[str, Any]) -> Place:
    """Join the world of a `RankWorld`. Ranks share the machine's cores: each computes on one thread."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=command["timeout_s"]))
    if not command["count_link"] or os.environ["LOCAL_RANK"] != "0":
        return Place()
    return Place(sent_bytes=lambda: interfaces_sent_bytes()[os.environ["GLOO_SOCKET_IFNAME"]])
