"""The command line: `isthmus ...`."""

import signal
from importlib.metadata import version
from types import FrameType
from typing import Annotated

import typer

from isthmus.cli.bench import bench
from isthmus.cli.gone import Commands
from isthmus.cli.info import info
from isthmus.cli.plan import plan
from isthmus.cli.topo import topo

app = typer.Typer(cls=Commands, no_args_is_help=True)
app.add_typer(bench, name="bench")
app.command()(info)
app.command()(plan)
app.command()(topo)


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
