"""Host time of a call of the whole path: from torch's function to its return, with the device left to itself."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

import isthmus
from gpu.worlds.reductions import isthmus_group
from gpu.worlds.world import World

NUM_ELEMENTS = 4 * 256
CALLS = 12
TARGET_US = 40


def run(world: World) -> None:
    """Time calls with each codec, and of the plain backend."""
    with world.group(world.plain_backend):
        for codec in (None, "none", "default", "tagc", "default in segments"):
            name = f"isthmus, codec {codec}" if codec else world.plain_backend
            world.check(f"host time of reduce_scatter_tensor, {name}", lambda: enqueue(world, codec))  # noqa: B023


def enqueue(world: World, codec: str | None) -> dict[str, float]:
    """A few calls at a time: more than the queue of launches holds would measure the device."""
    group = isthmus_group(codec) if codec else None
    source = torch.ones(NUM_ELEMENTS, device=world.device)
    shard = torch.empty(NUM_ELEMENTS // world.size, device=world.device)
    times_us = []
    for batch in range(6):
        works = []
        for _ in range(CALLS):
            with isthmus.unit("timed"):
                start = time.perf_counter()
                works.append(dist.reduce_scatter_tensor(shard, source, group=group, async_op=True))
                times_us.append(1e6 * (time.perf_counter() - start))
        for work in works:
            work.wait()
        world.settle()
        if batch == 0:
            times_us.clear()  # connections and kernels are set up
    lower, median, upper = statistics.quantiles(times_us, n=4)
    return {"median us": median, "lower quartile": lower, "upper quartile": upper, "target": TARGET_US}
