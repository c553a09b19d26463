"""`isthmus info`: facts for a bug report."""

import json as json_module
from typing import Annotated

import typer
from rich.console import Console

from isthmus.cli.terminal import WIDTH, failures_told


def info(json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """Show versions, features, options and variables in force: the facts for a bug report."""
    with failures_told():
        from isthmus.report.info import SCHEMA, collect, print_info

        found = collect()
        if json:
            print(json_module.dumps({"schema": SCHEMA, **found}, indent=2))
        else:
            print_info(found, Console(width=WIDTH))
