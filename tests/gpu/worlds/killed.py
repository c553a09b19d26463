"""A rank that is killed in the middle of a step: every other rank gets an error that names it, in bounded time."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import isthmus
from gpu.worlds.reductions import heavy_tail
from gpu.worlds.world import World, require
from support.limits import scaled

NUM_ELEMENTS = 4 * 100_000
#: Which rank is killed. Not the store's host.
KILLED_RANK = 3
TIMEOUT = timedelta(seconds=scaled(15))
#: After the group's own timeout: what the survivors may take to ask each other, and to abort.
PATIENCE_S = scaled(20)


def why_wrong(text: str) -> str:
    """Return what is wrong with the error of a survivor; "" if nothing is.

    What is told first is what people act on: which tier failed, or which rank, and not what codecs made of memory that
    a failed tier never filled.
    """
    first = text.partition("\n")[0]
    if f"rank {KILLED_RANK}" not in text:
        return "the error does not name the rank:"
    if " tier" not in first and f"rank {KILLED_RANK}" not in first:
        return "the error does not begin with the tier or the rank:"
    return "the error begins with a packet:" if "packet" in first else ""


def run(world: World) -> None:
    """Kill a rank while units are under way."""
    with world.group(TIMEOUT, is_left=False, ISTHMUS_MIN_ELEMENTS="0", ISTHMUS_SEGMENTS="4"):
        world.check("a killed rank is named", lambda: killed(world), lost=KILLED_RANK)


def killed(world: World) -> dict[str, object]:
    """Reduce unit by unit; where an error comes, tell it."""
    source = heavy_tail(NUM_ELEMENTS, world.rank).to(world.device)
    shards = [torch.empty(NUM_ELEMENTS // world.size, device=world.device) for _ in range(4)]
    start = time.monotonic()

    def step(is_last: bool) -> None:
        works = []
        for number, shard in enumerate(shards):
            if is_last and number == len(shards) // 2 and world.rank == KILLED_RANK:
                os.kill(os.getpid(), signal.SIGKILL)
            with isthmus.unit(f"unit {number}"):
                works.append(dist.reduce_scatter_tensor(shard, source, async_op=True))
        for work in works:
            work.wait()
        torch.cuda.synchronize()

    step(is_last=False)
    text = ""
    try:
        while time.monotonic() - start < TIMEOUT.total_seconds() + PATIENCE_S:
            step(is_last=True)
            time.sleep(0.05)
    except (dist.DistError, RuntimeError) as error:
        text = str(error)
    seconds = time.monotonic() - start
    require(not why_wrong(text), why_wrong(text), repr(text))
    return {"seconds": seconds, "the error": text.splitlines()[0][:200]}
