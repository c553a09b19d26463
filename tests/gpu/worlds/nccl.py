"""The plain backend alone: what everything else stands on."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from gpu.worlds.reductions import own_chunk, whole_numbers
from gpu.worlds.world import World, require

NUM_ELEMENTS = 4 * 25_000


def run(world: World) -> None:
    """Join a group, and check three collectives."""
    with world.group(world.plain_backend):
        world.check("all-reduce", lambda: all_reduce(world))
        world.check("reduce-scatter", lambda: reduce_scatter(world))
        world.check("all-gather", lambda: all_gather(world))
        world.check("time of an all-reduce of 400 KB", lambda: seconds(world))


def sources(world: World) -> list[torch.Tensor]:
    return [whole_numbers(NUM_ELEMENTS, torch.float32, rank) for rank in range(world.size)]


def all_reduce(world: World) -> None:
    data = sources(world)[world.rank].to(world.device)
    dist.all_reduce(data)
    require(torch.equal(data.cpu(), sum(sources(world))), "wrong sum")


def reduce_scatter(world: World) -> None:
    shard = torch.empty(NUM_ELEMENTS // world.size, device=world.device)
    dist.reduce_scatter_tensor(shard, sources(world)[world.rank].to(world.device))
    require(torch.equal(shard.cpu(), own_chunk(sum(sources(world)))), "wrong sum")


def all_gather(world: World) -> None:
    gathered = torch.empty(NUM_ELEMENTS * world.size, device=world.device)
    dist.all_gather_into_tensor(gathered, sources(world)[world.rank].to(world.device))
    require(torch.equal(gathered.cpu(), torch.cat(sources(world))), "wrong values")


def seconds(world: World) -> dict[str, Any]:
    """Four processes take turns on one GPU: this says how long other steps will take, nothing of NCCL's speed."""
    data = torch.ones(NUM_ELEMENTS, device=world.device)
    world.settle()
    start = time.monotonic()
    for _ in range(10):
        dist.all_reduce(data)
    world.settle()
    return {"ms": 100 * (time.monotonic() - start)}
