"""The programs in docs/recipes.md run. Those of other frameworks do where these are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from support import ranks
from support.documents import programs
from support.limits import HANG_S

pytestmark = pytest.mark.processes

PROGRAMS = programs("docs/recipes.md")
FRAMEWORKS = ("accelerate", "lightning")
OF_FRAMEWORKS = sorted(name for name in PROGRAMS if name.startswith(FRAMEWORKS))
OF_TORCH = sorted(PROGRAMS.keys() - OF_FRAMEWORKS)


def run_programs(rank: int, world_size: int, ports: list[list[int]]) -> dict[str, float]:
    """Run each program in this process, each time with a store of its own: on Gloo for no step and for all, on Isthmus.

    Return how far this rank's weights end from Gloo's, as a share of how far these moved.
    """
    distances = {}
    for name, own_ports in zip(OF_TORCH, ports, strict=True):
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
    assert OF_TORCH == ["attach.py", "ddp.py", "hsdp.py", "tensor_parallel.py"]
    ports = [[ranks.free_port() for _ in range(3)] for _ in OF_TORCH]
    for of_rank in ranks.run(run_programs, 4, ports, env={"ISTHMUS_NODES": "2x2"}):
        assert all(0.01 < distance < 0.3 for distance in of_rank.values()), of_rank


@pytest.mark.parametrize("name", OF_FRAMEWORKS)
def test_recipe_for_a_framework(tmp_path: Path, name: str) -> None:
    framework = name.split("_")[0]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    program = tmp_path / name
    program.write_text(PROGRAMS[name])
    environment = os.environ | {"ISTHMUS_NODES": "2x2", "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", program]
    result = subprocess.run(launch, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 0, result.stderr
    assert any(line.strip().isdigit() and int(line) > 0 for line in result.stdout.splitlines()), result.stdout
