"""The programs in docs/recipes.md run."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from support import ranks
from support.documents import programs

pytestmark = pytest.mark.processes

PROGRAMS = programs("docs/recipes.md")
SGD = r"torch.optim.SGD(\1, lr=1e-2)"


def run_programs(rank: int, world_size: int, ports: list[list[int]]) -> dict[str, float]:
    """Run each program in this process, with a store of its own: as it stands; and with SGD, whose steps are as wrong
    as the gradients, on Gloo for no step and for all, and on Isthmus.

    Return how far this rank's weights end from Gloo's in the last one, as a share of how far these moved.
    """
    distances = {}
    for name, own_ports in zip(sorted(PROGRAMS), ports, strict=True):
        shown = PROGRAMS[name]
        with_sgd, changes = re.subn(r"torch\.optim\.\w+\(([\w.()]+), lr=[^)]+\)", SGD, shown)
        assert changes == len(re.findall(r"torch\.optim\.", shown))
        on_gloo = re.sub(r"\n(assert|stats|isthmus\.(prepare|attach)).*", "", with_sgd).replace('"isthmus"', '"gloo"')
        untrained = re.sub(r"for step in range\(\d\)", "for step in range(0)", on_gloo)
        weights = []
        for port, program in zip(own_ports, (shown, untrained, on_gloo, with_sgd), strict=True):
            os.environ["MASTER_PORT"] = str(port)
            torch.manual_seed(rank)
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(program, name, "exec"), names)
            weights.append(torch.cat([local(weight).flatten() for weight in names["model"].parameters()]))
        _, start, plain, coded = weights
        moved = plain - start
        distances[name] = float((coded - plain).norm() / moved.norm())
        assert abs(float((coded - start) @ moved / (moved @ moved)) - 1) < 0.005, name
    return distances


def local(weight: torch.Tensor) -> torch.Tensor:
    return (weight.to_local() if isinstance(weight, DTensor) else weight).detach()


def test_recipes_for_torch() -> None:
    """They train as on Gloo but for the codec's relative error: .076 of one crossing, .13 where the result of an
    all-reduce is coded, too; less where steps are exact.
    """
    assert sorted(PROGRAMS) == ["attach.py", "ddp.py", "hsdp.py", "muon.py", "tensor_parallel.py"]
    ports = [[ranks.free_port() for _ in range(4)] for _ in sorted(PROGRAMS)]
    for of_rank in ranks.run(run_programs, 4, ports, env={"ISTHMUS_NODES": "2x2"}):
        assert all(0.05 < coded < 0.13 for coded in of_rank.values()), of_rank
