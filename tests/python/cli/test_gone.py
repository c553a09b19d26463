"""Commands that are gone name what to use instead."""

import re
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import isthmus
from isthmus.cli.gone import GONE
from isthmus.cli.main import app

RUNNER = CliRunner()


@pytest.mark.parametrize("typed", GONE)
def test_a_command_that_is_gone_names_what_is_there(typed: str) -> None:
    called = RUNNER.invoke(app, [*typed.split(), "--ranks", "4"])
    assert (called.exit_code, called.stderr) == (1, f"isthmus: `isthmus {typed}` is gone: {GONE[typed]}\n")
    instead = re.search(r"`isthmus(?: ([a-z ]+)|\.([a-z_]+)\()", GONE[typed])
    assert instead is not None
    command, function = instead.groups()
    assert hasattr(isthmus, function) if function else RUNNER.invoke(app, [*command.split(), "--help"]).exit_code == 0


def test_none_of_them_is_still_there() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    there = {*commands, *(f"bench {name}" for name in commands["bench"].commands)}
    assert not there & GONE.keys()
