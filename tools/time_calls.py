"""Prints what a call costs the host: CPU time of the calling thread from Python's call to its return, in microseconds.

A reduce-scatter of 4,096 elements of a prepared unit of FSDP2, and a gather that did not change with weights="delta",
both asynchronous, on rank 0 of 2 nodes x 2 ranks; beside them the same calls of Gloo by itself, by which to judge.

Usage: python tools/time_calls.py
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

CALLS, FIRST_CALLS = 300, 50
ELEMENTS = 4096


def measure(call: Callable[[], Any], barrier: Callable[[], Any]) -> tuple[float, float]:
    """Return the tenth percentile and the median of many calls."""
    times = []
    for number in range(FIRST_CALLS + CALLS):
        barrier()
        begin = time.thread_time()
        work = call()
        end = time.thread_time()
        work.wait()
        if number >= FIRST_CALLS:
            times.append(1e6 * (end - begin))
    return statistics.quantiles(times, n=10)[0], statistics.median(times)


def run_ranks(function: Callable[..., None], num_ranks: int, *arguments: Any) -> None:
    """Call function(rank, address to meet at, *arguments) in one process for each rank, on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    multiprocessing.set_forkserver_preload(["torch", "isthmus"])
    multiprocessing.start_processes(function, (address, *arguments), num_ranks, start_method="forkserver")


def time_on(rank: int, address: str) -> None:
    """Run one rank; the first prints."""
    from torch.distributed.fsdp import fully_shard

    import isthmus
    from isthmus.torch_private.models import collectives_of, gather_group, param_groups_of

    torch.set_num_threads(1)
    options = isthmus.Options(nodes="2x2", weights="delta", min_elements=0, log="error")
    dist.init_process_group("isthmus", init_method=address, rank=rank, world_size=4, pg_options=options)
    model = fully_shard(torch.nn.Linear(64, ELEMENTS // 64, bias=False))
    for _ in range(3):
        model(torch.randn(4, 64)).sum().backward()
    unit = param_groups_of(model)[0]
    gather, reduce = collectives_of(unit)
    group, gloo = gather_group(unit), dist.new_group(backend="gloo")
    whole, part = torch.randn(ELEMENTS), torch.empty(ELEMENTS // 4)
    output, shard = torch.empty(ELEMENTS), torch.randn(ELEMENTS // 4)
    calls: dict[str, Callable[[], Any]] = {
        "prepared reduce-scatter": lambda: reduce(part, whole, group, dist.ReduceOp.AVG, async_op=True),
        "unchanged gather": lambda: gather(output, shard, group, async_op=True),
        "Gloo's reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=gloo, async_op=True),
        "Gloo's gather": lambda: dist.all_gather_into_tensor(output, shard, group=gloo, async_op=True),
    }
    for name, call in calls.items():
        low, median = measure(call, dist.barrier)
        if rank == 0:
            print(f"{name:26}tenth percentile {low:6.1f}, median {median:6.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(time_on, 4)
