"""`isthmus perf`: which program it becomes, with which arguments, and what it says where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import isthmus
from isthmus.cli.main import app


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: calls.append((program, arguments)))
    return calls


def make_program(folder: Path) -> str:
    program = folder / "isthmus_perf"
    program.write_text("")
    program.chmod(0o755)
    return str(program)


def test_every_argument_goes_to_the_program(
    started: list[tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_program(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for arguments in (["-b", "64K", "--codecs", "none,quant"], ["--help"], []):
        result = CliRunner().invoke(app, ["perf", *arguments])
        assert result.exit_code == 0, result.output
        assert started.pop() == (program, ["isthmus_perf", *arguments])


def test_the_installed_one_comes_first(
    started: list[tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("package", "path"):
        (tmp_path / name).mkdir()
    installed = make_program(tmp_path / "package")
    make_program(tmp_path / "path")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(isthmus, "__file__", str(tmp_path / "package" / "__init__.py"))
    assert CliRunner().invoke(app, ["perf"]).exit_code == 0
    assert started == [(installed, ["isthmus_perf"])]


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(app, ["perf"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "isthmus: isthmus_perf is neither installed with the package nor on PATH: install the package"
    )
