"""Starts the ranks of a world, and has each run the same checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gpu.harness import shared_gpu
from gpu.harness.records import FAILED, Check
from support import ranks
from support.limits import HANG_S

WORLD_SIZE = 4


def launch(names: Sequence[str], device: str, short: bool) -> int:
    """Run ``gpu.worlds.NAME.run(world)`` of each on the same ranks; return the exit status.

    device: "cuda", "cpu" or "fake".
    """
    if device == "fake":
        from support import fake_gpu

        outcomes = fake_gpu.run_any(run_rank, WORLD_SIZE, names, "cuda", short, timeout_s=_limit_s())
    else:
        outcomes = ranks.run_any(run_rank, WORLD_SIZE, names, device, short, timeout_s=_limit_s())
    killed = getattr(import_module(f"gpu.worlds.{names[0]}"), "KILLED_RANK", None)
    broken = [outcome for outcome in outcomes if (outcome.error or outcome.exit_code) and outcome.rank != killed]
    for outcome in broken:
        print(f"rank {outcome.rank} ended with {outcome.exit_code}:\n{outcome.error}", file=sys.stderr)
    if broken:
        print(Check("all ranks end", FAILED, detail=f"ranks {[outcome.rank for outcome in broken]} did not").line())
    return 0 if not broken and all(outcome.value for outcome in outcomes if outcome.rank != killed) else 1


def _limit_s() -> float:
    """Below the step's own limit, so that ranks which hang still print their stacks."""
    return max(10, float(os.environ.get("GPU_STEP_LIMIT_S", HANG_S)) - 10)


def run_rank(rank: int, world_size: int, names: Sequence[str], device: str, short: bool) -> bool:
    """Be one rank; return whether all checks passed."""
    if device != "cpu":
        os.environ.update(shared_gpu.of_rank(rank))
    os.environ["LOCAL_RANK"] = "0"
    from gpu.worlds.world import World

    with World(rank, world_size, device, short) as world:
        for name in names:
            import_module(f"gpu.worlds.{name}").run(world)
    return world.passed
