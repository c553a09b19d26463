"""What the shell asks when Tab is pressed, once `isthmus --install-completion` was run there."""

import pytest
from typer.testing import CliRunner

from isthmus.cli.main import app


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("isthmus pl", ["plan"]),
        ("isthmus bench tr", ["training"]),
        ("isthmus bench training --he", ["--here", "--help"]),
        ("isthmus plan --in", ["--inter", "--intra", "--inter-latency-us", "--intra-latency-us"]),
    ],
)
def test_tab(typed: str, completions: list[str]) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_ISTHMUS_COMPLETE": "complete_bash"}
    told = CliRunner().invoke(app, prog_name="isthmus", env=asked)
    assert told.output.split() == completions
