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


def run_programs(rank: int, world_size: int, ports: list[list[int]]) -> dict[str, float]:
    """Run each program in this process, each time with a store of its own: on Gloo for no step and for all, on Isthmus.

    Return how far this rank's weights end from Gloo's, as a share of how far these moved.
    """
    distances = {}
    for name, own_ports in zip(sorted(PROGRAMS), ports, strict=True):
        on_gloo = re.sub(r"\n(assert isthmus|isthmus\.(prepare|attach)).*", "", PROGRAMS[name]).replace(
            '"isthmus"', '"gloo"'
        )
        untrained = re.sub(r"for step in range\(\d\)", "for step in range(0)", on_gloo)
        weights = []
        for port, program in zip(own_ports, (untrained, on_gloo, PROGRAMS[name]), strict=True):
            os.environ["MASTER_PORT"] = str(port)
            torch.manual_seed(rank)
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(program, name, "exec"), names)
            weights.append(torch.cat([local(weight).flatten() for weight in names["model"].parameters()]))
        start, plain, compressed = weights
        distances[name] = float((compressed - plain).norm() / (plain - start).norm())
    return distances


def local(weight: torch.Tensor) -> torch.Tensor:
    return (weight.to_local() if isinstance(weight, DTensor) else weight).detach()


def test_recipes_for_torch() -> None:
    """They train as on Gloo, up to what the codec loses and Adam makes of it."""
    assert sorted(PROGRAMS) == ["attach.py", "ddp.py", "hsdp.py", "tensor_parallel.py"]
    ports = [[ranks.free_port() for _ in range(3)] for _ in sorted(PROGRAMS)]
    for of_rank in ranks.run(run_programs, 4, ports, env={"ISTHMUS_NODES": "2x2"}):
        assert all(0.01 < distance < 0.3 for distance in of_rank.values()), of_rank
