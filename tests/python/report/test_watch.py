"""A file of `isthmus.log_to`, and what `isthmus watch` shows of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import isthmus
from isthmus.cli.main import app
from isthmus.report import loggers
from isthmus.report.watch import COLUMNS, Follower, head, read_line, row
from python.report import made_up_stats

LINE = {"schema": 1, "time_s": 100.0, "step": 10, "sent_bytes": 2e6, "ran_s": 0.5, "waited_s": 0.25, "exact_calls": 3}


def write(path: Path, *records: dict[str, float], end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(json.dumps(record) for record in records) + end)


def test_what_log_to_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "stats", made_up_stats.group)
    path = tmp_path / "folder" / "run.jsonl"
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1)
    handle = isthmus.log_to(path, every=2)
    for _ in range(5):
        optimizer.step()
    handle.remove()
    first, second = Follower(path).new_records()
    assert (first["step"], second["step"]) == (2, 4)
    assert first["sent_bytes"] > 0 and second["sent_bytes"] == 0, "the statistics did not change in between"
    assert "compression" in first and "compression" not in second


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, LINE)
    write(path, LINE | {"step": 20}, end="")
    follower = Follower(path)
    assert [record["step"] for record in follower.new_records()] == [10]
    assert list(follower.new_records()) == []
    write(path, end="\n")
    assert [record["step"] for record in follower.new_records()] == [20]
    path.write_text("")
    write(path, LINE)
    assert [record["step"] for record in follower.new_records()] == [10], "a file that was begun anew"


@pytest.mark.parametrize("line", ["{}", "[]", "3", "nonsense", json.dumps(LINE | {"schema": 2})])
def test_other_files_are_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"not a line of isthmus\.log_to|schema 2, where 1 is expected"):
        list(Follower(path).new_records())


def test_steps_a_second_are_those_since_the_line_before() -> None:
    first = read_line(json.dumps(LINE))
    later = first | {"time_s": 110.0, "step": 30, "compression": 3.5, "relative_squared_error": 0.012}
    assert row(later, first, "10:00:00").split() == ["10:00:00", "30", "2", "2", "3.50", "0.5", "0.25", "3", "0.012"]
    assert row(first, None, "10:00:00").split() == ["10:00:00", "10", "2", "0.5", "0.25", "3"]
    assert len(row(later, first, "10:00:00")) == len(head()) == sum(width + 2 for _, width in COLUMNS) - 2


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, LINE, LINE | {"step": 20, "time_s": 105.0})
    shown = CliRunner().invoke(app, ["watch", str(path), "--once"])
    assert shown.exit_code == 0 and len(shown.stdout.splitlines()) == 3
    assert shown.stderr == ""
    path.write_text("")
    empty = CliRunner().invoke(app, ["watch", str(path), "--once"])
    assert len(empty.stdout.splitlines()) == 1 and "no step yet; isthmus.log_to writes every 100th" in empty.stderr
    missing = CliRunner().invoke(app, ["watch", str(tmp_path / "none"), "--once"])
    assert missing.exit_code == 1 and "No such file" in missing.stderr
    path.write_text("nonsense\n")
    assert "not a line of isthmus.log_to" in CliRunner().invoke(app, ["watch", str(path), "--once"]).stderr
