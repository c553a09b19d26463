"""Starts the ranks of a world, and has each run the same checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gpu.programs import FAILED, Check
from gpu.worlds import shared_gpu
from support import ranks
from support.limits import HANG_S

WORLD_SIZE = 4


def launch(names: Sequence[str], *, short: bool = False, fake: bool = False) -> int:
    """Run ``gpu.worlds.NAME.run(world)`` of each on the same ranks; return the exit status.

    fake: on the fake GPU (tests/fake_gpu), for tests.
    """
    run_any = ranks.run_any
    if fake:
        from support.fake_gpu import run_any
    outcomes = run_any(run_rank, WORLD_SIZE, names, short, timeout_s=_limit_s())
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


def run_rank(rank: int, world_size: int, names: Sequence[str], short: bool) -> bool:
    """Be one rank; return whether all checks passed."""
    os.environ.update(shared_gpu.of_rank(rank), LOCAL_RANK="0")
    from gpu.worlds.world import World

    with World(rank, world_size, short) as world:
        for name in names:
            import_module(f"gpu.worlds.{name}").run(world)
    return world.passed
