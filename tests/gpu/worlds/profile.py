"""What profilers and statistics say of the phases of a reduce-scatter."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

import isthmus
from gpu.worlds.reductions import heavy_tail, isthmus_group, reduce_scatter
from gpu.worlds.world import World, require

NUM_ELEMENTS = 4 * 500_000
CODECS = ("default", "tagc in segments")
PHASES = ("intra reduce-scatter", "encode", "inter exchange", "decode", "inter all-gather", "intra all-gather")


def run(world: World) -> None:
    """Profile some steps, then time some."""
    with world.group():
        for codec in CODECS:
            world.check(f"codec {codec}: torch.profiler shows the phases", lambda: profiled(world, codec))  # noqa: B023
            world.check(f"codec {codec}: statistics have seconds of each phase", lambda: timed(world, codec))  # noqa: B023


def steps(world: World, group: dist.ProcessGroup, num_steps: int) -> None:
    """Reduce-scatter and gather."""
    source = heavy_tail(NUM_ELEMENTS, world.rank).to(world.device)
    for _ in range(num_steps):
        shard = reduce_scatter(source, group)
        dist.all_gather_into_tensor(torch.empty_like(source), shard, group=group)
    torch.cuda.synchronize()


def profiled(world: World, codec: str) -> dict[str, object]:
    """Labels of the phases stand in the profile."""
    group = isthmus_group(codec)
    steps(world, group, 1)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        steps(world, group, 2)
    names = {event.key for event in profiler.key_averages()}
    missing = [phase for phase in PHASES if not any(phase in name for name in names)]
    require(not missing, "the profile lacks", missing, sorted(names))
    return {"labels": len(names)}


def timed(world: World, codec: str) -> dict[str, float]:
    """Seconds come from events on the lanes: they are there once the device is done."""
    group = isthmus_group(codec, device_timings=True)
    steps(world, group, 3)
    collectives = isthmus.stats(group)["collectives"]
    seconds = {name: collectives["reduce_scatter"][name] for name in ("intra_s", "encode_s", "exchange_s", "decode_s")}
    require(all(0 < value < 20 for value in seconds.values()), seconds)
    require(collectives["all_gather"]["exchange_s"] > 0, collectives["all_gather"])
    return seconds
