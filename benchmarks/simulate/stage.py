"""Simulated nodes and their ranks as what a benchmark runs on."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from isthmus.benchmarks.common.stage import Place, Stage
from isthmus.benchmarks.simulate.gpus import open_gpus
from isthmus.benchmarks.simulate.links import interfaces_sent_bytes
from isthmus.benchmarks.simulate.network import open_network
from isthmus.benchmarks.simulate.ranks import RankWorld
from isthmus.group.cuda import ask_for_connections


@contextmanager
def simulated_stage(
    nodes: int, ranks_per_node: int, module: str, log_dir: Path, device: str = "cpu"
) -> Iterator[Stage]:
    """Start ranks of `module` on simulated nodes, as `RankWorld` says.

    No process, namespace or daemon outlives the context. device: "cuda" for ranks that have GPUs, as `open_gpus` says.
    """
    with ExitStack() as stack:
        network = stack.enter_context(open_network(nodes))
        gpus = stack.enter_context(open_gpus(nodes, ranks_per_node)) if device == "cuda" else None
        description = f"{network.description}, {gpus.description}" if gpus else network.description
        of_rank = gpus.environment if gpus else lambda rank: {}
        world = stack.enter_context(RankWorld(network, ranks_per_node, module, log_dir, of_rank))
        yield Stage(world.request, description, network.has_links, network.shape if network.has_links else None)


def join_simulated(device: str, timeout_s: float, counts_links: bool) -> Place:
    """Join the world of a `RankWorld`. Ranks share the machine's cores: each computes on one thread.

    On the GPU of its index in the node, if the device is "cuda".
    """
    torch.set_num_threads(1)
    if device == "cuda":
        ask_for_connections()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.init()  # type: ignore[no-untyped-call]  # or DeviceMesh chooses anew, by the index alone
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    counts = counts_links and os.environ["LOCAL_RANK"] == "0"
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    return Place(device, (lambda: interfaces_sent_bytes()[interface]) if counts else None)
