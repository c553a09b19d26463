"""A launcher restarts ranks: training goes on from its last checkpoint, with the bits of one that nothing stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from python.residuals import restarted_training
from support import ranks
from support.limits import HANG_S
from support.places import PYTHONPATH

pytestmark = pytest.mark.processes

WORLD_SIZE = 4
ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"}
KILLED, RAISED = "-9", "1"


def uninterrupted(rank: int, world_size: int, folder: Path) -> list[str]:
    return restarted_training.train(folder)


def torchrun(folder: Path, max_restarts: int) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD_SIZE)]
    return subprocess.run(
        [*launcher, "--max-restarts", str(max_restarts), restarted_training.__file__, str(folder)],
        env=os.environ | ENV | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def test_a_restarted_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """A rank is killed in the first attempt; in the second Isthmus raises an error; the third ends."""
    for folder in (tmp_path / "restarted", tmp_path / "uninterrupted"):
        folder.mkdir()
    outcome = torchrun(tmp_path / "restarted", max_restarts=len(restarted_training.INJECTIONS))
    assert outcome.returncode == 0, outcome.stderr
    assert re.findall(r"failed \(exitcode: (-?\d+)\)", outcome.stderr) == [KILLED, RAISED], outcome.stderr
    assert re.search(r"DistBackendError: isthmus: reduce-scatter #\d+ of 4096 x Float of unit", outcome.stderr)
    expected = ranks.run(uninterrupted, WORLD_SIZE, tmp_path / "uninterrupted", env=ENV)
    for rank in range(WORLD_SIZE):
        assert len(expected[rank]) == 2 * (1 + 3), "not all units were compressed: this shows nothing"
        assert (tmp_path / "restarted" / f"result{rank}").read_text().splitlines() == ["2", *expected[rank]]
