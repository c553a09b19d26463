"""`isthmus bench ...`: benchmarks over simulated nodes. Their options are fields of the configurations."""

from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.benchmarks.collectives.config import CollectivesConfig
from isthmus.benchmarks.convergence.config import ConvergenceConfig
from isthmus.benchmarks.scaling.config import ScalingConfig
from isthmus.benchmarks.survival.run import SurvivalConfig, print_survival, run_survival
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.weights.config import WeightsConfig
from isthmus.cli import terminal
from isthmus.cli.options import filled
from isthmus.cli.terminal import FAILED, fail

bench = typer.Typer(
    no_args_is_help=True,
    help="Benchmarks: over simulated nodes on this machine; some also over the nodes that are there.",
)

_Json = Annotated[Path | None, typer.Option(help="Write everything to this file, too.")]
_Logs = Annotated[Path, typer.Option(help="Where the ranks' stderr goes.")]


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
@filled(ScalingConfig)
def scaling(
    config: ScalingConfig,
    output: Annotated[Path, typer.Option(help="Where scaling.json and each layout's report go.")] = Path(
        "bench-out/scaling"
    ),
) -> None:
    """Repeat the training benchmark at several numbers of nodes: bytes and seconds of a step."""
    from isthmus.benchmarks.common.report import write_json
    from isthmus.benchmarks.scaling.run import print_scaling, run_scaling

    console = terminal.console()
    report = run_scaling(config, output, console)
    write_json(report, output / "scaling.json")
    print_scaling(report, console)
    console.print(f"\n{output / 'scaling.json'}")


@bench.command()
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
    from isthmus.benchmarks.convergence.results import read_results
    from isthmus.benchmarks.convergence.run import run_convergence
    from isthmus.benchmarks.convergence.summary import print_summary

    console = terminal.console()
    if not report_only:
        run_convergence(config, output, console)
    print_summary(read_results(output / "convergence.jsonl"), console, against)


@bench.command()
@filled(CollectivesConfig, simulated_only=("logs",))
def collectives(config: CollectivesConfig, json: _Json = None, logs: _Logs = Path("bench-out/collectives")) -> None:
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
@filled(SurvivalConfig)
def survival(config: SurvivalConfig, logs: _Logs = Path("bench-out/survival")) -> None:
    """Train under torchft while members are killed: over Isthmus, and over torchft's own Gloo group. Needs torchft."""
    try:
        import isthmus.torchft  # noqa: F401
    except ImportError as error:
        fail(str(error), error)
    console = terminal.console()
    print_survival(config, run_survival(config, logs, console), console)


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
