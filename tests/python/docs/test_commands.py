"""Commands that documents show with their answers still answer so, to the last figure."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isthmus.cli.main import app
from support.documents import DOCUMENTS, ShownCommand, shown_commands
from support.places import ROOT

# What is not run here, by how the command begins, and why.
NOT_RUN = {
    "run bench training --here": "it trains for minutes, and its figures are those of a cluster's links",
    "torchrun --nnodes 2": "it takes two hosts; tests/python/docs/test_examples.py runs it in two namespaces",
}
SHOWN = [
    shown for document in DOCUMENTS for shown in shown_commands(document.read_text(), str(document.relative_to(ROOT)))
]


def reasons(shown: ShownCommand) -> list[str]:
    """Return why the command is not run: nothing, or one reason."""
    return [reason for begin, reason in NOT_RUN.items() if shown.command.startswith(begin)]


@pytest.mark.parametrize(
    "shown",
    [shown for shown in SHOWN if not reasons(shown)],
    ids=lambda shown: f"{shown.document}: {shown.command}",
)
def test_a_command_prints_what_its_document_shows(
    shown: ShownCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").symlink_to(ROOT / "topology")
    monkeypatch.chdir(tmp_path)  # it may write files
    program, *arguments = shlex.split(shown.command)
    assert program == "isthmus", "a command that this test cannot run, nor a reason for it in NOT_RUN"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert shown.is_answered_by(result.stdout), result.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_answer_stands_in_the_block_of_its_command(document: Path) -> None:
    """Elsewhere nobody compares it."""
    assert not re.search(r"^(?:    \S.*|```)\n\n```\n(?!\$ )", document.read_text(), re.MULTILINE)


def test_what_is_not_run_is_shown() -> None:
    assert all(any(shown.command.startswith(begin) for shown in SHOWN) for begin in NOT_RUN)
