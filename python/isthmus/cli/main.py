"""The command line: `isthmus ...`."""

import signal
from types import FrameType

import typer

from isthmus.cli.bench import bench
from isthmus.cli.info import info
from isthmus.cli.plan import plan
from isthmus.cli.topo import topo

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Isthmus: FSDP over slow links between nodes.")
app.add_typer(bench, name="bench")
app.command()(info)
app.command()(plan)
app.command()(topo)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point. SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


if __name__ == "__main__":
    main()
