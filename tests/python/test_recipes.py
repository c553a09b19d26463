"""The programs in docs/recipes.md run. Those of other frameworks do where these are installed."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import ranks
from limits import HANG_S

pytestmark = pytest.mark.processes

DOCUMENT = Path(__file__).parents[2] / "docs/recipes.md"
PROGRAMS = {
    match[1]: match[0] for match in re.findall(r"```python\n(# (\w+\.py).*?)```", DOCUMENT.read_text(), re.DOTALL)
}
FRAMEWORKS = ("accelerate", "lightning")
OF_FRAMEWORKS = sorted(name for name in PROGRAMS if name.startswith(FRAMEWORKS))
OF_TORCH = sorted(PROGRAMS.keys() - OF_FRAMEWORKS)


def run_programs(rank: int, world_size: int, ports: list[int]) -> None:
    """Run one program after the other in this process, each with a store of its own."""
    for name, port in zip(OF_TORCH, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        exec(compile(PROGRAMS[name], name, "exec"), {"__name__": "__main__"})


def test_recipes_for_torch() -> None:
    assert OF_TORCH == ["ddp.py", "hsdp.py", "tensor_parallel.py"]
    ports = [ranks.free_port() for _ in OF_TORCH]
    ranks.run(run_programs, 4, ports, env={"ISTHMUS_NODES": "2x2"})


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
