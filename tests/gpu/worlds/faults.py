"""Ranks that disagree about a packet get an error, all of them, and no wrong sum."""

from __future__ import annotations

import torch
import torch.distributed as dist

import isthmus
from gpu.worlds.reductions import heavy_tail, isthmus_group, reduce_scatter
from gpu.worlds.world import World, require

NUM_ELEMENTS = 4 * 20_000
CODECS = ("default", "tagc", "default in segments")


def run(world: World) -> None:
    """Let one node forget its units' steps: its packets are then those of another step."""
    with world.group(world.plain_backend):
        for codec in CODECS:
            name = f"codec {codec}: packets of another step are an error on every rank"
            world.check(name, lambda: another_step(world, codec))  # noqa: B023


def another_step(world: World, codec: str) -> dict[str, object]:
    """Node 0 begins at step 0 again, node 1 goes on. Decoders of both nodes refuse what they get."""
    group = isthmus_group(codec)
    source = heavy_tail(NUM_ELEMENTS, world.rank).to(world.device)
    for _ in range(3):
        reduce_scatter(source, group)
    world.settle()
    if world.rank < 2:
        isthmus.clear_residuals(group)
    text = ""
    try:
        for _ in range(3):  # on a GPU the host sees it at a later call, without waiting for the device
            reduce_scatter(source, group)
            world.settle()
    except (dist.DistBackendError, RuntimeError) as error:
        text = str(error)
    require("step" in text, "no error about the step:", repr(text))
    again = ""
    try:
        dist.all_reduce(torch.ones(4, device=world.device), group=group)
    except (dist.DistBackendError, RuntimeError) as error:
        again = str(error)
    require(again != "", "the group still works after a failure")
    return {"the error": text.splitlines()[0][:160]}
