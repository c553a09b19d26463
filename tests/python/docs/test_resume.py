"""The programs in docs/checkpoints.md run."""

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from support import ranks
from support.documents import programs
from support.places import ROOT

pytestmark = pytest.mark.processes

DOCUMENT = "docs/checkpoints.md"
PROGRAMS = programs(DOCUMENT)
FUNCTIONS = re.findall(r"```python\n(def .*?)```", (ROOT / DOCUMENT).read_text(), re.DOTALL)


def execute(rank: int, world_size: int, program: str, arguments: tuple[str, ...]) -> str:
    """Be a rank of a program; return what it prints."""
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run(program: str, num_ranks: int, nodes: str, *arguments: str) -> str:
    settings = {"ISTHMUS_NODES": nodes, "ISTHMUS_CODEC": "tagc", "ISTHMUS_MIN_ELEMENTS": "1000"}
    return "".join(ranks.run(execute, num_ranks, program, arguments, env=settings))


def test_training_is_resumed_with_residuals_on_as_many_ranks_alone(tmp_path: Path) -> None:
    program, checkpoint = PROGRAMS["resume.py"], str(tmp_path / "checkpoint")
    assert "restored" not in run(program, 4, "2x2", checkpoint)
    assert "4 restored, 0 dropped" in run(program, 4, "2x2", checkpoint)
    assert "0 restored, 4 dropped" in run(program, 2, "2x1", checkpoint)


def test_files_of_single_ranks_are_loaded(tmp_path: Path) -> None:
    (functions,) = FUNCTIONS
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
    run(f"{imports}\n{functions}\nfolder ={before}{steps}{after}", 2, "2x1", str(tmp_path))


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"resume.py"}))
def test_other_programs(name: str) -> None:
    assert "steps were skipped" in run(PROGRAMS[name], 2, "2x1")
