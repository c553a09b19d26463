"""The command line: `isthmus ...`."""

import json as json_module
import signal
from importlib.metadata import version
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from isthmus.cli.bench import bench
from isthmus.cli.plan import plan
from isthmus.cli.terminal import WIDTH, failures_told
from isthmus.cli.topo import topo

app = typer.Typer(no_args_is_help=True)
app.add_typer(bench, name="bench")
app.command()(plan)
app.command()(topo)


@app.command()
def info(json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """Show versions, features, options and variables in force: the facts for a bug report."""
    with failures_told():
        from isthmus.report.info import SCHEMA, collect, print_info

        found = collect()
        if json:
            print(json_module.dumps({"schema": SCHEMA, **found}, indent=2))
        else:
            print_info(found, Console(width=WIDTH))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"isthmus {version('isthmus')}")
        raise typer.Exit()


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Isthmus: FSDP over slow links between nodes."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point. SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


if __name__ == "__main__":
    main()
