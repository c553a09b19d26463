"""The programs in docs/checkpoints.md run."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import ranks
from support.documents import programs
from support.limits import HANG_S
from support.places import ROOT

pytestmark = pytest.mark.processes

DOCUMENT = "docs/checkpoints.md"
PROGRAMS = programs(DOCUMENT)
KILLED_ONCE = Path(__file__).with_name("killed_once.py")
FUNCTIONS = re.findall(r"```python\n(def .*?)```", (ROOT / DOCUMENT).read_text(), re.DOTALL)


def execute(rank: int, world_size: int, program: str, arguments: tuple[str, ...]) -> str:
    """Be a rank of a program; return what it prints."""
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run(program: str, num_ranks: int, nodes: str, *arguments: str, **settings: str) -> str:
    env = {"ISTHMUS_NODES": nodes, "ISTHMUS_CODEC": "tagc", "ISTHMUS_MIN_ELEMENTS": "1000", **settings}
    return "".join(ranks.run(execute, num_ranks, program, arguments, env=env))


def test_training_is_resumed_with_residuals_on_as_many_ranks_alone(tmp_path: Path) -> None:
    program, checkpoint = PROGRAMS["resume.py"], str(tmp_path / "checkpoint")
    assert "restored" not in run(program, 4, "2x2", checkpoint)
    assert "4 restored, 0 dropped" in run(program, 4, "2x2", checkpoint)
    assert "0 restored, 4 dropped" in run(program, 2, "2x1", checkpoint)


def run_by_agents(program: Path, folder: Path, **settings: str) -> list[str]:
    """Run it under two agents of torchrun, each a node with one rank; return what each of them printed."""
    torchrun = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{ranks.free_port()}", "--local-addr=127.0.0.1")
    script = (KILLED_ONCE, folder / "was killed", program, folder / "checkpoints")
    agents = [
        subprocess.Popen(
            [sys.executable, *torchrun, *meeting, *script],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    return outputs


def test_ranks_that_agents_start_again_have_the_bits_of_an_uninterrupted_run(tmp_path: Path) -> None:
    settings = {"ISTHMUS_CODEC": "quant", "ISTHMUS_ERROR_FEEDBACK": "on", "ISTHMUS_WEIGHTS": "delta"}
    program = tmp_path / "resume.py"
    program.write_text(PROGRAMS["resume.py"])
    uninterrupted = run(program.read_text(), 2, "2x1", str(tmp_path / "uninterrupted"), **settings)
    restarted = run_by_agents(program, tmp_path, **settings)
    losses = [re.findall(r"rank \d, step \d: loss .*", text) for text in (uninterrupted, "".join(restarted))]
    assert len(losses[0]) == len(set(losses[0])) == 2 * 6
    assert set(losses[0]) == set(losses[1]) and len(losses[1]) > len(losses[0])  # steps after the checkpoint, again
    for file in ("__0_0.distcp", "__1_0.distcp"):  # weights, moments, residuals
        assert (tmp_path / "checkpoints/6" / file).read_bytes() == (tmp_path / "uninterrupted/6" / file).read_bytes()
    for text in restarted:
        assert "4 restored, 0 dropped" in text
        *_, last = re.findall(r"crossed whole: (.*)", text)
        assert last == "{'the first gather': 4}"


def test_files_of_single_ranks_are_loaded(tmp_path: Path) -> None:
    (functions,) = FUNCTIONS
    imports, rest = PROGRAMS["resume.py"].split("folder =", 1)
    before, _, steps, _ = re.split(r"(?=# torch writes)|(?=for step)|(?=    print\(f\"rank)", rest)
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
    run(f"{imports}\n{functions}\ndone = 0\nfolder ={before}{steps}{after}", 2, "2x1", str(tmp_path))


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"resume.py"}))
def test_other_programs(name: str) -> None:
    assert "steps were skipped" in run(PROGRAMS[name], 2, "2x1")
