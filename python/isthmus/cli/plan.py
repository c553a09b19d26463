"""`isthmus plan`: bytes, time and memory of a training step, and which way to train is best."""

import importlib
import json as json_module
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.consoles import console
from isthmus.cli.failures import FAILED, failures_told

if TYPE_CHECKING:
    from isthmus.plan.units import Model


def _names_in(module: str, constant: str) -> Callable[[], list[str]]:
    """Complete by the names in a constant of `isthmus.plan`, imported at Tab: commands start without it."""
    return lambda: list(getattr(importlib.import_module(f"isthmus.plan.{module}"), constant))


def _strategies(incomplete: str) -> list[str]:
    """Complete the last name of a list."""
    from isthmus.plan.strategies import STRATEGIES

    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + name for name in STRATEGIES if name not in before.split(",")]


def plan(
    preset: Annotated[
        str | None,
        typer.Option(help="A published model, such as llama2-7b.", autocompletion=_names_in("presets", "PRESETS")),
    ] = None,
    parameters: Annotated[str | None, typer.Option(help="Number of parameters, such as 7e9; with --units.")] = None,
    units: Annotated[int, typer.Option(help="Units of equal size that --parameters are in.")] = 32,
    unit_sizes: Annotated[str | None, typer.Option(help="Parameters of each unit, such as 1e6,2e6,2e6.")] = None,
    module: Annotated[str | None, typer.Option(help="A factory of a torch module, package.module:factory.")] = None,
    wrap: Annotated[
        str | None,
        typer.Option(help="With --module: classes that are units.", show_default="elements of its ModuleLists"),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes.", show_default="the file's, or 2")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(help="Ranks on each.", show_default="the file's, or 8")] = None,
    inter: Annotated[
        str | None,
        typer.Option(help="What a node sends to others over all its NICs: 25gbit.", show_default="the file's"),
    ] = None,
    intra: Annotated[
        str | None, typer.Option(help="What a rank sends within its node: 600gbit.", show_default="the file's")
    ] = None,
    inter_latency_us: Annotated[float | None, typer.Option(help="Of a round between nodes.", show_default="20")] = None,
    intra_latency_us: Annotated[float | None, typer.Option(help="Of a round in a node.", show_default="5")] = None,
    links: Annotated[
        str | None,
        typer.Option(
            help='A file that `isthmus topo --measure` wrote, or "cache": the newest measurement that it kept.',
            show_default="the cache, where no option names nodes, ranks, speeds or latencies",
        ),
    ] = None,
    machine: Annotated[
        Path | None, typer.Option(help="A recorded machine, as for `isthmus topo --from`: speeds of its links.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Which ways to train, of docs/plan.md's; hsdp-quant3 is hsdp-quant with 3 bits, so quant8 to quant1, "
            "full2 and others; an unknown name lists all.",
            show_default="those of 4 bits, but zero1, ddp-none and ddp-tagc",
            autocompletion=_strategies,
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="What plain strategies run on: nccl or gloo.", autocompletion=_names_in("strategies", "BACKENDS")
        ),
    ] = "nccl",
    dtype: Annotated[
        str,
        typer.Option(
            help="Type that parameters are gathered in: bf16, fp16 or fp32.",
            autocompletion=_names_in("placement", "BYTES_OF"),
        ),
    ] = "bf16",
    reduce_dtype: Annotated[
        str,
        typer.Option(
            help="Type that gradients are reduced in.",
            show_default="--dtype",
            autocompletion=_names_in("placement", "BYTES_OF"),
        ),
    ] = "",
    reshard: Annotated[
        str,
        typer.Option(
            help="FSDP's reshard_after_forward: yes, no, or node (keep a copy on each node).",
            autocompletion=_names_in("strategies", "RESHARDINGS"),
        ),
    ] = "yes",
    accumulation: Annotated[int, typer.Option(help="Micro-batches in a step.")] = 1,
    reduce: Annotated[
        str,
        typer.Option(
            help="Reduce after each micro-batch or the last: each, last.",
            autocompletion=_names_in("assumptions", "REDUCES"),
        ),
    ] = "each",
    input_buffers: Annotated[
        int,
        typer.Option(
            help="Of FSDP2's reduce-scatters: 2 as `isthmus.prepare` sets them on torch 2.13 and later, 1 as they are "
            "before, or where nobody sets them."
        ),
    ] = 2,
    ratio: Annotated[float, typer.Option(help="tagc: blocks of a piece for each row of its sketch.")] = 10.0,
    lr: Annotated[float, typer.Option(help="Learning rate (AdamW): decides how far weights move in a step.")] = 1e-4,
    weight_bits: Annotated[
        float | None,
        typer.Option(
            help="With weights as differences (full): bits of each element of a shard that changed, as a run's "
            "`isthmus.stats()` has them.",
            show_default="by --lr",
        ),
    ] = None,
    codec_speed: Annotated[
        str,
        typer.Option(
            help="GB/s of float32 of all codecs but none: 100, 100/150 (encode/decode), cpu (measured), gpu (assumed)."
        ),
    ] = "gpu",
    compute_s: Annotated[
        float | None, typer.Option(help="Seconds of compute in a step.", show_default="from tokens")
    ] = None,
    tokens: Annotated[float, typer.Option(help="Tokens of a rank in a step.")] = 8192,
    tflops: Annotated[float, typer.Option(help="Peak TFLOP/s of a rank.")] = 989,
    mfu: Annotated[float, typer.Option(help="Share of the peak that is used.")] = 0.4,
    memory_gb: Annotated[
        float | None, typer.Option(help="Of a rank, activations apart: what needs more cannot win.", show_default="any")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw step time over link speed into this .png or .svg.", show_default="none")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Compare predictions with a report.json of `isthmus bench training`, and nothing else."),
    ] = None,
) -> None:
    """Predict bytes, time and memory of a training step, and which way to train is best over which links."""
    with failures_told("bench"):
        if check is not None:
            _check(check, json)
            return
        from isthmus.plan.assumptions import Accumulation, Compute, codec_speeds, compute_of_tokens, weight_bits_at
        from isthmus.plan.packets import WireOptions
        from isthmus.plan.placement import ElementBytes
        from isthmus.plan.ranges import check_range
        from isthmus.plan.report import build_report
        from isthmus.plan.scan import Comparison
        from isthmus.plan.sources import from_file, given, resolve
        from isthmus.plan.step import Setting, StepPlan
        from isthmus.plan.strategies import DEFAULT_STRATEGIES, strategies_named, world_formula
        from isthmus.plan.tables import print_comparison

        check_range("ratio", ratio, 1, 64)
        options = given(nodes, ranks_per_node, inter, intra, inter_latency_us, intra_latency_us)
        cluster, speeds, sources = resolve(options, from_file(links, machine, options))
        setting = Setting(
            model=_model(preset, parameters, units, unit_sizes, module, wrap),
            cluster=cluster,
            world=world_formula(backend, cluster.ranks_per_node),
            element_bytes=ElementBytes.of(dtype, reduce_dtype or dtype),
            resharding=reshard,
            accumulation=Accumulation(accumulation, reduce),
            input_buffers=input_buffers,
        )
        names = _split(strategies) if strategies is not None else list(DEFAULT_STRATEGIES)
        if weight_bits is None:
            weight_bits = weight_bits_at(lr)
        check_range("weight_bits", weight_bits, 0, 32)
        chosen = strategies_named(names, WireOptions(ratio=ratio, weight_bits=weight_bits))
        if compute_s is None:
            compute = compute_of_tokens(setting.model.num_parameters, tokens, tflops, mfu)
        else:
            compute = Compute(compute_s, "given")
        if memory_gb is not None:
            check_range("memory_gb", memory_gb, 0.001, 1e6)
        comparison = Comparison(
            plans=[StepPlan(setting, strategy) for strategy in chosen],
            links=speeds,
            codecs=codec_speeds(codec_speed, ratio),
            compute=compute,
            memory_bytes=None if memory_gb is None else round(memory_gb * 1e9),
            sources=sources,
        )
        if plot is not None:
            from isthmus.plan.figure import check_format, draw_comparison

            check_format(plot)
            draw_comparison(comparison, setting, plot)
        if json:
            print(json_module.dumps(build_report(comparison, setting), indent=1))
        else:
            print_comparison(comparison, setting, console())


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _model(
    preset: str | None, parameters: str | None, units: int, unit_sizes: str | None, module: str | None, wrap: str | None
) -> "Model":
    """The model that exactly one of the options describes. Raises ValueError."""
    from isthmus.plan.presets import PRESETS
    from isthmus.plan.presets import preset as preset_named
    from isthmus.plan.units import equal_units, parse_count, units_of_sizes

    described = [option for option in (preset, parameters, unit_sizes, module) if option is not None]
    if len(described) != 1:
        raise ValueError(
            f"{len(described)} models: expected one of --preset ({', '.join(PRESETS)}), --parameters, --unit-sizes and "
            "--module"
        )
    if preset is not None:
        return preset_named(preset)
    if parameters is not None:
        return equal_units(parse_count(parameters, "parameters"), units)
    if unit_sizes is not None:
        return units_of_sizes([parse_count(size, "unit size") for size in _split(unit_sizes)])
    from isthmus.plan.modules import load_module, units_of

    assert module is not None
    return units_of(load_module(module), _split(wrap or ""))


def _check(path: Path, as_json: bool) -> None:
    from isthmus.benchmarks.training.check import check_report, print_checks

    try:
        report = json_module.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    try:
        checks = check_report(report)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not checks:
        raise ValueError(f"{path}: no arm of it is a strategy that can be planned")
    if as_json:
        print(json_module.dumps([each.to_json() for each in checks], indent=1))
    else:
        print_checks(checks, console())
    if not all(each.holds for each in checks):
        raise typer.Exit(FAILED)
