"""`python -m isthmus.benchmarks.scaling`, from a checkout."""

from pathlib import Path
from typing import Annotated

import typer

from isthmus.benchmarks.common.report import write_json
from isthmus.benchmarks.scaling.config import ScalingConfig
from isthmus.benchmarks.scaling.run import print_scaling, run_scaling
from isthmus.cli import terminal
from isthmus.cli.options import filled
from isthmus.cli.terminal import run

app = typer.Typer()


@app.command()
@filled(ScalingConfig)
def scaling(
    config: ScalingConfig,
    output: Annotated[Path, typer.Option(help="Where scaling.json and each layout's report go.")] = Path(
        "bench-out/scaling"
    ),
) -> None:
    """Repeat the training benchmark at several numbers of nodes: bytes and seconds of a step."""
    console = terminal.console()
    report = run_scaling(config, output, console)
    write_json(report, output / "scaling.json")
    print_scaling(report, console)
    console.print(f"\n{output / 'scaling.json'}")


if __name__ == "__main__":
    run(app)
