"""`isthmus bench ...`: benchmarks over simulated nodes. Their options are fields of the configurations."""

from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.benchmarks.collectives.config import CollectivesConfig
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.weights.config import WeightsConfig
from isthmus.cli import terminal
from isthmus.cli.options import filled
from isthmus.cli.terminal import FAILED

bench = typer.Typer(
    no_args_is_help=True,
    help="Benchmarks: over simulated nodes on this machine; some also over the nodes that are there.",
)

_Json = Annotated[Path | None, typer.Option(help="Write everything to this file, too.")]


@bench.command()
@filled(TrainingConfig)
def training(
    config: TrainingConfig,
    output: Annotated[Path, typer.Option(help="Where the report and logs go.")] = Path("bench-out/training"),
) -> None:
    """Train a byte-level GPT under FSDP2 over a slow link, plain and compressed side by side.

    With --here on the ranks of torchrun, mpirun or srun and the links between their nodes, with --islands on this
    machine's GPUs and their links, else on simulated nodes. Those have this machine's GPUs, if there are any.
    """
    from isthmus.benchmarks.common.report import write_json
    from isthmus.benchmarks.here.stage import tells
    from isthmus.benchmarks.training.report import build_report, markdown, print_report
    from isthmus.benchmarks.training.run import run_training

    console = terminal.console()
    report = build_report(run_training(config, output, console))
    if config.here and not tells():
        return
    write_json(report, output / "report.json")
    (output / "report.md").write_text(markdown(report))
    print_report(report, console)
    files = f"{output / 'report.json'}, report.md{_drawn(report, output)}"
    console.print(f"\n{files}  ({report['seconds']:.0f} s)", markup=False, soft_wrap=True)
    console.print(f"\n{report['advice']}", highlight=False, markup=False, soft_wrap=True)


def _drawn(report: dict[str, Any], output: Path) -> str:
    """Draw report.png; returns what the line that names the files says of it."""
    try:
        from isthmus.benchmarks.training.picture import picture_of
    except ModuleNotFoundError as error:
        return f"; no picture: {error} (`pip install isthmus[bench]`)"
    picture_of(report).savefig(output / "report.png")
    return ", report.png"


@bench.command()
@filled(CollectivesConfig, simulated_only=("logs",))
def collectives(
    config: CollectivesConfig,
    json: _Json = None,
    logs: Annotated[Path, typer.Option(help="Where the ranks' stderr goes.")] = Path("bench-out/collectives"),
) -> None:
    """Time and verify single collectives, in the manner of nccl-tests.

    With --here on the ranks of torchrun, mpirun or srun and the links between their nodes, else on simulated nodes.
    """
    from isthmus.benchmarks.collectives.run import print_collectives, run_collectives
    from isthmus.benchmarks.common.report import write_json
    from isthmus.benchmarks.here.stage import tells

    console = terminal.console()
    report = run_collectives(config, logs, console)
    print_collectives(report, console)
    if json is not None and (not config.here or tells()):
        write_json(report, json)
    if report["num_wrong"]:
        raise typer.Exit(FAILED)


@bench.command()
@filled(WeightsConfig)
def weights(config: WeightsConfig, json: _Json = None) -> None:
    """Compare what a step of training costs to send by isthmus.weights, by zstd and as changed elements."""
    from isthmus.benchmarks.common.report import write_json
    from isthmus.benchmarks.weights.run import print_weights, run_weights

    console = terminal.console()
    report = run_weights(config, console)
    print_weights(report, console)
    if json is not None:
        write_json(report, json)
