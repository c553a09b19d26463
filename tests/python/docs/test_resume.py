"""The programs in docs/checkpoints.md run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import programs
from support.limits import HANG_S
from support.places import ROOT

pytestmark = pytest.mark.processes

DOCUMENT = "docs/checkpoints.md"
PROGRAMS = programs(DOCUMENT)
FUNCTIONS = re.findall(r"```python\n(def .*?)```", (ROOT / DOCUMENT).read_text(), re.DOTALL)


def run(program: Path, num_ranks: int, nodes: str, *arguments: str) -> str:
    settings = {"ISTHMUS_NODES": nodes, "ISTHMUS_CODEC": "tagc", "ISTHMUS_MIN_ELEMENTS": "1000", "OMP_NUM_THREADS": "1"}
    environment = os.environ | settings
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    result = subprocess.run(
        [*launch, program, *arguments], env=environment, capture_output=True, text=True, timeout=HANG_S
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_training_is_resumed_with_residuals_on_as_many_ranks_alone(tmp_path: Path) -> None:
    program, checkpoint = tmp_path / "resume.py", str(tmp_path / "checkpoint")
    program.write_text(PROGRAMS["resume.py"])
    assert "restored" not in run(program, 4, "2x2", checkpoint)
    assert "4 restored, 0 dropped" in run(program, 4, "2x2", checkpoint)
    assert "0 restored, 4 dropped" in run(program, 2, "2x1", checkpoint)


def test_files_of_single_ranks_are_loaded(tmp_path: Path) -> None:
    (functions,) = FUNCTIONS
    program = tmp_path / "files.py"
    imports, rest = PROGRAMS["resume.py"].split("folder =", 1)
    before, loop, _ = re.split(
        r"(?=if os\.path)|(?=weights, moments = get_state_dict\(model, optimizer\)\nstate)", rest
    )
    steps = loop[loop.index("for step") :]
    after = """
save(model, optimizer, folder)
before = isthmus.state_dict(model)
isthmus.clear_residuals(model)
load(model, optimizer, folder)
after = isthmus.state_dict(model)
assert len(before) == 5 and before.keys() == after.keys()
assert all(torch.equal(before[key], after[key]) for key in before if "/" in key)
dist.destroy_process_group()
"""
    program.write_text(f"{imports}\n{functions}\nfolder ={before}{steps}{after}")
    run(program, 2, "2x1", str(tmp_path))


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"resume.py"}))
def test_other_programs(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.write_text(PROGRAMS[name])
    assert "steps were skipped" in run(program, 2, "2x1")
