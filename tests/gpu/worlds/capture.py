"""A reduce-scatter in a CUDA graph: each replay is the next step, as on the CPU."""

from __future__ import annotations

import torch

from gpu.worlds.reductions import heavy_tail, isthmus_group, reduce_scatter
from gpu.worlds.world import World, require

NUM_ELEMENTS = 4 * 60_000
WARM_UP_STEPS = 3
REPLAYS = 4
CODECS = ("none", "default", "tagc", "default in segments")


def run(world: World) -> None:
    """Capture one reduce-scatter with each codec."""
    with world.group():
        for codec in CODECS:
            world.check(f"replays of a captured reduce-scatter, codec {codec}", lambda: replays(world, codec))  # noqa: B023


def replays(world: World, codec: str) -> dict[str, object]:
    """Warm up, capture, replay; compare every result with the CPU's of the same step."""
    on_device, on_cpu = isthmus_group(codec), isthmus_group(codec)
    source = torch.empty(NUM_ELEMENTS, device=world.device)

    def expected(step: int) -> torch.Tensor:
        return reduce_scatter(heavy_tail(NUM_ELEMENTS, world.rank, step), on_cpu)

    def compare(step: int, result: torch.Tensor) -> None:
        require(torch.equal(result.cpu(), expected(step)), f"step {step} differs from the CPU's")

    for step in range(WARM_UP_STEPS):
        source.copy_(heavy_tail(NUM_ELEMENTS, world.rank, step))
        compare(step, reduce_scatter(source, on_device))
    result = torch.empty(NUM_ELEMENTS // world.size, device=world.device)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Other threads of this process (NCCL's watchdog asks for events) may call what a global capture forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result.copy_(reduce_scatter(source, on_device))
    for step in range(WARM_UP_STEPS, WARM_UP_STEPS + REPLAYS):
        source.copy_(heavy_tail(NUM_ELEMENTS, world.rank, step))
        graph.replay()
        compare(step, result)
    return {"replays": REPLAYS}
