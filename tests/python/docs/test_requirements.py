"""`make setup` takes the newest torch that pyproject.toml supports, or the oldest."""

from __future__ import annotations

import runpy
import sys

import pytest
from packaging.requirements import Requirement

from support.places import ROOT


def requirements(torch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[Requirement]:
    monkeypatch.setattr(sys, "argv", ["requirements.py", torch])
    runpy.run_path(str(ROOT / "tools/requirements.py"))
    return [Requirement(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("which", "beyond"), [("newest", 1), ("oldest", -1)])
def test_the_end_of_what_is_supported(
    which: str, beyond: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supported, chosen = (r.specifier for r in requirements(which, monkeypatch, capsys) if r.name == "torch")
    major, minor = map(int, str(chosen).removeprefix("==").removesuffix(".*").split("."))
    assert supported.contains(f"{major}.{minor}.0")
    assert not supported.contains(f"{major}.{minor + beyond}.0")


def test_a_version_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    named = [str(r) for r in requirements("torch==2.13.*", monkeypatch, capsys) if r.name == "torch"]
    assert named[-1] == "torch==2.13.*"
