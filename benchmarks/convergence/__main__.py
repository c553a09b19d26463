"""`python -m isthmus.benchmarks.convergence`, from a checkout."""

from pathlib import Path
from typing import Annotated

import typer

from isthmus.benchmarks.convergence.config import ConvergenceConfig
from isthmus.benchmarks.convergence.results import read_results
from isthmus.benchmarks.convergence.run import run_convergence
from isthmus.benchmarks.convergence.summary import print_summary
from isthmus.cli import terminal
from isthmus.cli.options import filled
from isthmus.cli.terminal import run

app = typer.Typer()


@app.command()
@filled(ConvergenceConfig)
def convergence(
    config: ConvergenceConfig,
    report_only: Annotated[bool, typer.Option("--report-only", help="Print the tables of what has run.")] = False,
    against: Annotated[str, typer.Option(help="The arm whose losses the others' are compared with.")] = "exact",
    output: Annotated[Path, typer.Option(help="Where convergence.jsonl is, with a line for each run.")] = Path(
        "bench-out/convergence"
    ),
) -> None:
    """Train with some codecs and compare validation losses over the bits that cross. Resumable."""
    console = terminal.console()
    if not report_only:
        run_convergence(config, output, console)
    print_summary(read_results(output / "convergence.jsonl"), console, against)


if __name__ == "__main__":
    run(app)
