"""Errors that end all ranks of a job alike: one rank tells them, and all end with an exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus
from isthmus.base import error_reports, native
from isthmus.base.error_reports import on_all
from support.limits import HANG_S

PROGRAM = """
import torch.distributed as dist, isthmus, os
dist.init_process_group('isthmus', pg_options=isthmus.Options(bits=2 if os.environ['RANK'] == '1' else 4))
"""


def lines(output: str, text: str) -> list[str]:
    return [line for line in output.splitlines() if text in line]


@pytest.mark.processes
def test_one_rank_tells_what_all_meet(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
    environment |= {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(launch, env=environment, capture_output=True, text=True, timeout=HANG_S)
    output, text = result.stdout + result.stderr, "ranks have different options: bits is '4' on rank 0, '2' on rank 1"
    assert result.returncode == 1, output
    assert "Root Cause" in output, output  # torchrun's own table: ranks ended by an error, not by themselves
    (told_by,) = lines(output, "isthmus: ERROR: ")
    assert text in told_by, output
    assert len(lines(output, "program.py")) <= 4, output  # one traceback, and torchrun's name of the job
    errors = [line for line in lines(output, text) if "Error: " in line and "isthmus: ERROR" not in line]
    assert len(errors) == 1, output  # the last line of the one traceback
    assert output.index(told_by) < output.index(errors[0])


class Shown:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[BaseException] = []
        core = native.load()  # the first time, that installs the hook, too
        monkeypatch.setattr(sys, "excepthook", lambda _, error, __: self.errors.append(error))
        monkeypatch.setattr(error_reports, "FIRST_RANK_S", 0)
        error_reports.tell_uncaught_once(core)

    def ends_with(self, error: BaseException) -> bool:
        self.errors.clear()
        sys.excepthook(type(error), error, None)
        return bool(self.errors)


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, size: int = 2) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))


@pytest.mark.parametrize("keywords", [{"bit": 2}, {"codec": "zip"}, {"bits": 99}])
def test_every_error_in_options_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, keywords: dict[str, object]
) -> None:
    shown = Shown(monkeypatch)
    with pytest.raises(ValueError) as error:
        isthmus.Options(**keywords)  # type: ignore[arg-type]
    launched(monkeypatch, 0)
    assert shown.ends_with(error.value)
    launched(monkeypatch, 1)
    assert not shown.ends_with(error.value)
    assert caplog.messages == [str(error.value), f"rank 1: {error.value}"]


def test_without_other_ranks_nothing_changes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown(monkeypatch)
    for rank, size in ((0, 1), (3, 1)):
        launched(monkeypatch, rank, size)
        assert shown.ends_with(isthmus.OptionError("bits"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    assert shown.ends_with(isthmus.OptionError("bits"))
    assert caplog.messages == []


def test_other_errors_and_debug_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = Shown(monkeypatch)
    launched(monkeypatch, 1)
    assert shown.ends_with(ValueError("of the program"))
    assert not shown.ends_with(on_all(ValueError("isthmus: agreed"), 1))
    assert shown.ends_with(on_all(ValueError("isthmus: agreed"), 0))
    assert caplog.messages == ["agreed"]
    monkeypatch.setenv("ISTHMUS_LOG", "debug")
    assert shown.ends_with(on_all(ValueError("isthmus: agreed"), 1))
