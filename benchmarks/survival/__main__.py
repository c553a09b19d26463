"""`python -m isthmus.benchmarks.survival`, from a checkout."""

from pathlib import Path
from typing import Annotated

import typer

from isthmus.benchmarks.survival.run import SurvivalConfig, print_survival, run_survival
from isthmus.cli import terminal
from isthmus.cli.options import filled
from isthmus.cli.terminal import fail, run

app = typer.Typer()


@app.command()
@filled(SurvivalConfig)
def survival(
    config: SurvivalConfig,
    logs: Annotated[Path, typer.Option(help="Where the members' stderr goes.")] = Path("bench-out/survival"),
) -> None:
    """Train under torchft while members are killed: over Isthmus, and over torchft's own Gloo group. Needs torchft."""
    try:
        import isthmus.torchft  # noqa: F401
    except ImportError as error:
        fail(str(error), error)
    console = terminal.console()
    print_survival(config, run_survival(config, logs, console), console)


if __name__ == "__main__":
    run(app)
