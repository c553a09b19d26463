"""What `isthmus plan` prints, in this process."""

import json
import re

from typer.testing import CliRunner

from isthmus.cli.main import app


def run(*arguments):
    """Exit code and everything that was printed, in one line."""
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "400"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def report(*arguments):
    result = CliRunner().invoke(app, ["plan", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)
