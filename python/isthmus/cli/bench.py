"""`isthmus bench ...`: benchmarks over simulated nodes."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isthmus._commands.failures import FAILED, failures_told

bench = typer.Typer(no_args_is_help=True, help="Benchmarks over simulated nodes on this machine.")

_BYTE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@bench.command()
def training(
    arms: Annotated[
        str, typer.Option(help="Which arms, in this order.")
    ] = "fsdp,hsdp,none,flat-tagc,tagc,quant,hsdp-none,hsdp-quant",
    nodes: Annotated[int, typer.Option(help="Simulated nodes, 2 to 8.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node.")] = 2,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Rate of every node's link; repeatable.", show_default="200mbit, 50mbit"),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each arm without a limit on the link, for the loss.")] = 100,
    timed_steps: Annotated[int, typer.Option(help="Timed steps of each arm at each link rate.")] = 8,
    audited_steps: Annotated[int, typer.Option(help="Steps of each arm that count each collective's bytes.")] = 2,
    dtype: Annotated[str, typer.Option(help="Parameters and reduction: bf16, fp32 or fp16.")] = "bf16",
    width: Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")] = 256,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    context: Annotated[int, typer.Option(help="Bytes in a sequence.")] = 128,
    sequences: Annotated[int, typer.Option(help="Sequences of each rank in a step.")] = 4,
    lr: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 1.5e-3,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches, the same for all arms.")] = 1,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text to train on; repeatable.", show_default="Python's standard library", exists=True, dir_okay=False
        ),
    ] = None,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 300,
    output: Annotated[Path, typer.Option(help="Where report.json, report.png and logs go.")] = Path(
        "bench-out/training"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Few steps: a check, not a measurement.")] = False,
) -> None:
    """Train a byte-level GPT under FSDP2 over a slow link, plain and compressed side by side."""
    with failures_told(extra="bench"):
        from isthmus.bench.config import TrainingConfig
        from isthmus.bench.figure import draw_report
        from isthmus.bench.report import build_report, print_report, write_json
        from isthmus.bench.training import run_training

        config = TrainingConfig(
            arms=_names(arms),
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            steps=min(steps, 12) if quick else steps,
            timed_steps=min(timed_steps, 3) if quick else timed_steps,
            links=tuple(link or (("50mbit",) if quick else ("200mbit", "50mbit"))),
            audited_steps=1 if quick else audited_steps,
            dtype=dtype,
            width=width,
            num_layers=layers,
            context=context,
            sequences=sequences,
            validation_sequences=8 if quick else 32,
            lr=lr,
            seed=seed,
            text=tuple(str(path) for path in text or ()),
            timeout_s=timeout,
        )
        console = Console()
        report = build_report(run_training(config, output, console))
        write_json(report, output / "report.json")
        draw_report(report, output / "report.png")
        print_report(report, console)
        console.print(f"\n{output / 'report.json'}  {output / 'report.png'}  ({report['seconds']:.0f} s)")


@bench.command()
def scaling(
    layouts: Annotated[str, typer.Option(help="Nodes x ranks on each, one run each.")] = "2x1,4x1,8x1,2x2,4x2,8x2",
    arms: Annotated[str, typer.Option(help="Which arms.")] = "fsdp,hsdp,none,flat-tagc,tagc,hsdp-none,hsdp-tagc",
    link: Annotated[str, typer.Option(help="Rate of every node's link.")] = "50mbit",
    timed_steps: Annotated[int, typer.Option(help="Timed steps of each arm.")] = 4,
    width: Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")] = 256,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    sequences: Annotated[int, typer.Option(help="Sequences of each rank in a step.")] = 1,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 300,
    output: Annotated[Path, typer.Option(help="Where scaling.json, scaling.png and each layout's report go.")] = Path(
        "bench-out/scaling"
    ),
) -> None:
    """Repeat the training benchmark at several numbers of nodes: bytes and seconds of a step. Goes on where it was."""
    with failures_told(extra="bench"):
        from isthmus.bench.config import TrainingConfig
        from isthmus.bench.report import write_json
        from isthmus.bench.scaling import Layout, ScalingConfig, print_scaling, run_scaling
        from isthmus.bench.scaling_figure import draw_scaling

        training = TrainingConfig(
            arms=_names(arms),
            steps=2,
            timed_steps=timed_steps,
            audited_steps=1,
            links=(link,),
            width=width,
            num_layers=layers,
            sequences=sequences,
            validation_sequences=1,
            timeout_s=timeout,
        )
        config = ScalingConfig(training, tuple(Layout.parse(layout) for layout in _names(layouts)))
        console = Console()
        report = run_scaling(config, output, console)
        write_json(report, output / "scaling.json")
        draw_scaling(report, output / "scaling.png")
        print_scaling(report, console)
        console.print(f"\n{output / 'scaling.json'}  {output / 'scaling.png'}")


@bench.command()
def convergence(
    stage: Annotated[
        str, typer.Option(help="screen: every arm, in one process a run. finalists: a few on the real backend. both.")
    ] = "screen",
    arms: Annotated[str, typer.Option(help="Which arms to screen: globs of names.")] = "*",
    finalists: Annotated[
        str | None, typer.Option(help="At most six arms.", show_default="as docs/convergence.md chose them")
    ] = None,
    optimizers: Annotated[str, typer.Option(help="adamw, sgd.")] = "adamw,sgd",
    seeds: Annotated[
        int | None,
        typer.Option(help="How many; each gives all arms the same weights and batches.", show_default="3; finalists 6"),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="found first")] = None,
    half_lr: Annotated[bool, typer.Option(help="Screen at half of the learning rate, too.")] = True,
    layout: Annotated[
        str, typer.Option(help="fsdp: gradients are reduce-scattered. hsdp: all-reduced between nodes.")
    ] = "fsdp",
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 500,
    nodes: Annotated[str | None, typer.Option(help="Simulated nodes, 2 to 8.", show_default="2; finalists 2,4")] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Rate of every node's link in the finalists' timed steps.", show_default="200mbit, 50mbit"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of compute and reduction: bf16 or fp32.")] = "bf16",
    width: Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")] = 128,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    context: Annotated[int, typer.Option(help="Bytes in a sequence.")] = 64,
    sequences: Annotated[int, typer.Option(help="Sequences of all ranks together in a step.")] = 32,
    validation_sequences: Annotated[int, typer.Option(help="Sequences held out, the same for all runs.")] = 1024,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text to train on; repeatable.", show_default="Python's standard library", exists=True, dir_okay=False
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Screening runs at a time, each on one core.")] = 1,
    report_only: Annotated[bool, typer.Option("--report-only", help="Write the report of what has run.")] = False,
    output: Annotated[Path, typer.Option(help="Where convergence.jsonl, convergence.md and figures/ are.")] = Path(
        "bench-out/convergence"
    ),
) -> None:
    """Train with every codec and compare validation losses over the bits that cross. Goes on where it was."""
    with failures_told(extra="bench"):
        from isthmus.bench.convergence import ConvergenceConfig, run_convergence
        from isthmus.bench.convergence_arms import FINALISTS
        from isthmus.bench.convergence_config import Setting
        from isthmus.bench.convergence_report import write_report
        from isthmus.bench.convergence_results import read_results
        from isthmus.bench.data import default_files

        console = Console()
        refused: dict[str, str] = {}
        if not report_only:
            config = ConvergenceConfig(
                stage=stage,
                arms=_names(arms),
                finalists=FINALISTS if finalists is None else _names(finalists),
                optimizers=_names(optimizers),
                num_seeds=seeds,
                lr=lr,
                half_lr=half_lr,
                nodes=None if nodes is None else tuple(_whole(number) for number in _names(nodes)),
                links=tuple(link or ("200mbit", "50mbit")),
                setting=Setting(
                    steps=steps,
                    dtype=dtype,
                    width=width,
                    num_layers=layers,
                    context=context,
                    sequences=sequences,
                    validation_sequences=validation_sequences,
                    layout=layout,
                ),
                files=tuple(text or default_files()),
                jobs=jobs,
            )
            refused = run_convergence(config, output, console)
        report = write_report(read_results(output / "convergence.jsonl"), output)
        console.print(f"\n{report}")
        for name, reason in refused.items():
            print(f"isthmus: arm {name} did not run: {reason}", file=sys.stderr)
        if refused:
            raise typer.Exit(FAILED)


@bench.command()
def bias(
    elements: Annotated[int, typer.Option(help="Of each gradient, an even number.", min=2)] = 262_144,
    steps: Annotated[int, typer.Option(help="Reductions of each row.", min=1)] = 8,
) -> None:
    """Regress what two nodes get with codec quant on what each of them gave: slopes below 1 are shrinkage."""
    with failures_told(extra="bench"):
        from isthmus.bench.bias import measure_biases, print_biases

        print_biases(measure_biases(elements, steps), Console())


@bench.command()
def auto(
    arms: Annotated[
        str, typer.Option(help="Which arms.")
    ] = "fsdp,none,quant8,quant4,quant3,quant2,quant1,sparse,tagc,auto,auto-any",
    nodes: Annotated[int, typer.Option(help="Simulated nodes, 2 to 8.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node.")] = 2,
    link: Annotated[
        list[str] | None,
        typer.Option(
            help='Rate of every node\'s link, or "unshaped"; repeatable.',
            show_default="50mbit, 200mbit, 1gbit, unshaped",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each arm at each link.")] = 4,
    steps: Annotated[int, typer.Option(help="Timed steps of a turn.")] = 2,
    dtype: Annotated[str, typer.Option(help="Parameters and reduction: bf16, fp32 or fp16.")] = "bf16",
    width: Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")] = 256,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 300,
    output: Annotated[Path, typer.Option(help="Where auto.json and logs go.")] = Path("bench-out/auto"),
    quick: Annotated[bool, typer.Option("--quick", help="One turn at one link: a check, not a measurement.")] = False,
) -> None:
    """Compare codec auto with plain FSDP and every fixed codec, at several link speeds."""
    with failures_told(extra="bench"):
        from isthmus.bench.auto import AutoConfig, print_auto, run_auto
        from isthmus.bench.auto import quick as quick_config
        from isthmus.bench.config import TrainingConfig
        from isthmus.bench.report import write_json

        training = TrainingConfig(
            arms=("fsdp",),
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            dtype=dtype,
            width=width,
            num_layers=layers,
            timeout_s=timeout,
        )
        config = AutoConfig(training, _names(arms), tuple(link or AutoConfig.links), rounds, steps)
        console = Console()
        report = run_auto(quick_config(config) if quick else config, output, console)
        write_json(report, output / "auto.json")
        print_auto(report, console)
        console.print(f"\n{output / 'auto.json'}")


@bench.command()
def collectives(
    nodes: Annotated[int, typer.Option(help="Simulated nodes, 2 to 8.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node.")] = 2,
    link: Annotated[
        str | None, typer.Option(help="Rate of every node's link, such as 200mbit.", show_default="no limit")
    ] = None,
    min_bytes: Annotated[str, typer.Option(help="Smallest size; K, M, G are powers of 1024.")] = "64K",
    max_bytes: Annotated[str, typer.Option(help="Largest size.")] = "16M",
    factor: Annotated[int, typer.Option(help="From one size to the next.")] = 4,
    operations: Annotated[str, typer.Option(help="Which collectives.")] = "reduce_scatter,all_gather,all_reduce",
    backends: Annotated[str, typer.Option(help="Which backends.")] = "gloo,none,flat-tagc,tagc,sparse,quant",
    dtype: Annotated[str, typer.Option(help="float, bfloat16 or half.")] = "float",
    iterations: Annotated[int, typer.Option(help="Timed calls of each.")] = 5,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 120,
    json: Annotated[Path | None, typer.Option(help="Write everything to this file, too.")] = None,
    logs: Annotated[Path, typer.Option(help="Where the ranks' stderr goes.")] = Path("bench-out/collectives"),
) -> None:
    """Time and verify single collectives over simulated nodes, in the manner of nccl-tests."""
    with failures_told(extra="bench"):
        from isthmus.bench.collectives import (
            CollectivesConfig,
            num_wrong,
            print_collectives,
            run_collectives,
            write_collectives,
        )

        config = CollectivesConfig(
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            link=link,
            min_bytes=_bytes(min_bytes),
            max_bytes=_bytes(max_bytes),
            factor=factor,
            operations=_names(operations),
            backends=_names(backends),
            dtype=dtype,
            iterations=iterations,
            timeout_s=timeout,
        )
        console = Console()
        report = run_collectives(config, logs, console)
        print_collectives(report, console)
        if json is not None:
            write_collectives(report, json)
        if num_wrong(report):
            raise typer.Exit(FAILED)


@bench.command()
def overhead(
    nodes: Annotated[int, typer.Option(help="Simulated nodes, 2 to 8.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node, for the training steps.")] = 2,
    rounds: Annotated[int, typer.Option(help="Batches of each call on each backend.")] = 60,
    batch_calls: Annotated[int, typer.Option(help="Calls in a batch.")] = 10,
    steps: Annotated[int, typer.Option(help="Timed training steps of each arm; 0: none.")] = 16,
    width: Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")] = 256,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 60,
    json: Annotated[Path | None, typer.Option(help="Write everything to this file, too.")] = None,
    logs: Annotated[Path, typer.Option(help="Where the ranks' stderr goes.")] = Path("bench-out/overhead"),
) -> None:
    """Measure what Isthmus adds to calls of bare Gloo, and to FSDP2 steps over the same tiers by hand."""
    with failures_told(extra="bench"):
        from isthmus.bench.overhead import (
            OverheadConfig,
            is_correct,
            print_overhead,
            run_overhead,
            write_overhead,
        )

        config = OverheadConfig(
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            rounds=rounds,
            batch_calls=batch_calls,
            steps=steps,
            width=width,
            num_layers=layers,
            timeout_s=timeout,
        )
        console = Console()
        report = run_overhead(config, logs, console)
        print_overhead(report, console)
        if json is not None:
            write_overhead(report, json)
        if not is_correct(report):
            raise typer.Exit(FAILED)


@bench.command()
def pipeline(
    link: Annotated[
        list[str] | None,
        typer.Option(help="Rate of each node's link; repeatable.", show_default="200mbit, 1gbit"),
    ] = None,
    codecs: Annotated[
        str | None, typer.Option(help="Which codecs, comma-separated.", show_default="none, quant, sparse and tagc")
    ] = None,
    num_bytes: Annotated[str, typer.Option("--bytes", help="Size of the float32 gradient.")] = "32M",
    rounds: Annotated[int, typer.Option(help="Timed calls of each.")] = 7,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 120,
    json: Annotated[Path | None, typer.Option(help="Write everything to this file, too.")] = None,
    logs: Annotated[Path, typer.Option(help="Where the ranks' stderr goes.")] = Path("bench-out/pipeline"),
) -> None:
    """Time reduce-scatters whole and in segments, which are encoded while others cross a shaped link."""
    with failures_told(extra="bench"):
        from isthmus.bench.pipeline import CODECS, PipelineConfig, print_pipeline, run_pipeline, write_pipeline

        config = PipelineConfig(
            links=tuple(link) if link else PipelineConfig.links,
            codecs=tuple(CODECS) if codecs is None else _names(codecs),
            num_bytes=_bytes(num_bytes),
            rounds=rounds,
            timeout_s=timeout,
        )
        console = Console()
        report = run_pipeline(config, logs, console)
        print_pipeline(report, console)
        if json is not None:
            write_pipeline(report, json)


@bench.command()
def soak(
    steps: Annotated[int, typer.Option(help="Steps of one to four collectives.")] = 10_000,
    nodes: Annotated[int, typer.Option(help="Simulated nodes, 2 to 8.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node, 2 or more.")] = 2,
    seed: Annotated[int, typer.Option(help="Of what happens in which step.")] = 1,
    timeout: Annotated[int, typer.Option(help="Seconds that a collective may take.")] = 120,
    logs: Annotated[Path, typer.Option(help="Where the ranks' stderr goes.")] = Path("bench-out/soak"),
) -> None:
    """Run mixed collectives in several groups at once, verify each, and watch memory, threads and descriptors."""
    with failures_told(extra="bench"):
        from isthmus.bench.soak import SoakConfig, print_soak, run_soak

        config = SoakConfig(steps=steps, nodes=nodes, ranks_per_node=ranks_per_node, seed=seed, timeout_s=timeout)
        console = Console()
        report = run_soak(config, logs, console)
        print_soak(config, report, console)
        for fault in report.faults():
            print(f"isthmus: {fault}", file=sys.stderr)
        if report.faults():
            raise typer.Exit(FAILED)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _whole(text: str) -> int:
    """Raises ValueError naming the text."""
    if not text.isdecimal():
        raise ValueError(f"'{text}': expected a whole number")
    return int(text)


def _bytes(text: str) -> int:
    """Return 65536 for "64K". Raises ValueError naming the text."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in _BYTE_UNITS:
        raise ValueError(f"size '{text}': expected a whole number, with K, M or G if wanted")
    return int(digits) * _BYTE_UNITS[unit]
