"""`isthmus plan`: bytes, time and memory of a training step, and which way to train is best."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.terminal import console, failures_told

if TYPE_CHECKING:
    from isthmus.plan.units import Model


def plan(
    preset: Annotated[
        str | None,
        typer.Option(help="A published model, such as llama2-7b; an unknown name lists them."),
    ] = None,
    module: Annotated[str | None, typer.Option(help="A factory of a torch module, package.module:factory.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes.", show_default="2")] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(help="Ranks on each.", show_default="the machine's, or 8")
    ] = None,
    inter: Annotated[
        str | None,
        typer.Option(help="What a node sends to others over all its NICs: 25gbit.", show_default="the machine's"),
    ] = None,
    intra: Annotated[
        str | None, typer.Option(help="What a rank sends within its node: 600gbit.", show_default="the machine's")
    ] = None,
    inter_latency_us: Annotated[float | None, typer.Option(help="Of a round between nodes.", show_default="20")] = None,
    intra_latency_us: Annotated[float | None, typer.Option(help="Of a round in a node.", show_default="5")] = None,
    machine: Annotated[
        Path | None, typer.Option(help="A recorded machine, as for `isthmus topo --from`: speeds of its links.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Which ways to train, of docs/plan.md's; hsdp-quant3 is hsdp-quant with 3 bits, so quant8 to quant1, "
            "full2 and others; an unknown name lists all.",
            show_default="those of 4 bits",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="What plain strategies run on: nccl or gloo.")] = "nccl",
    dtype: Annotated[str, typer.Option(help="Type that parameters are gathered in: bf16, fp16 or fp32.")] = "bf16",
    reduce_dtype: Annotated[str, typer.Option(help="Type that gradients are reduced in.", show_default="--dtype")] = "",
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
) -> None:
    """Predict bytes, time and memory of a training step, and which way to train is best over which links."""
    with failures_told("bench"):
        from isthmus.plan.assumptions import (
            Compute,
            codec_speeds,
            compute_of_tokens,
            parse_speed_gbit_s,
            weight_bits_at,
        )
        from isthmus.plan.packets import WireOptions
        from isthmus.plan.placement import ElementBytes
        from isthmus.plan.ranges import check_range
        from isthmus.plan.report import build_report, print_comparison
        from isthmus.plan.scan import Comparison
        from isthmus.plan.sources import known, of_machine, resolve
        from isthmus.plan.step import Setting, StepPlan
        from isthmus.plan.strategies import DEFAULT_STRATEGIES, strategies_named
        from isthmus.plan.volumes import world_formula
        from isthmus.topology.formats.read import read_machine

        inter_gbit_s = parse_speed_gbit_s(inter, "--inter") if inter is not None else None
        intra_gbit_s = parse_speed_gbit_s(intra, "--intra") if intra is not None else None
        options = known(
            "given",
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            inter_gbit_s=inter_gbit_s,
            intra_gbit_s=intra_gbit_s,
            inter_latency_us=inter_latency_us,
            intra_latency_us=intra_latency_us,
        )
        of_file = known("no --machine") if machine is None else of_machine(read_machine(machine), ranks_per_node)
        cluster, speeds, sources = resolve(options, of_file)
        setting = Setting(
            model=_model(preset, module),
            cluster=cluster,
            world=world_formula(backend, cluster.ranks_per_node),
            element_bytes=ElementBytes.of(dtype, reduce_dtype or dtype),
        )
        names = _split(strategies) if strategies is not None else list(DEFAULT_STRATEGIES)
        if weight_bits is None:
            weight_bits = weight_bits_at(lr)
        check_range("weight_bits", weight_bits, 0, 32)
        chosen = strategies_named(names, WireOptions(weight_bits=weight_bits))
        if compute_s is None:
            compute = compute_of_tokens(setting.model.num_parameters, tokens, tflops, mfu)
        else:
            compute = Compute(compute_s, "given")
        if memory_gb is not None:
            check_range("memory_gb", memory_gb, 0.001, 1e6)
        comparison = Comparison(
            plans=[StepPlan(setting, strategy) for strategy in chosen],
            links=speeds,
            codecs=codec_speeds(codec_speed),
            compute=compute,
            memory_bytes=None if memory_gb is None else round(memory_gb * 1e9),
            sources=sources,
        )
        if json:
            print(json_module.dumps(build_report(comparison, setting), indent=1))
        else:
            print_comparison(comparison, setting, console())


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _model(preset: str | None, module: str | None) -> "Model":
    """The model that one of the options describes. Raises ValueError."""
    from isthmus.plan.presets import PRESETS
    from isthmus.plan.presets import preset as preset_named

    if (preset is None) == (module is None):
        raise ValueError(f"expected one of --preset ({', '.join(PRESETS)}) and --module")
    if preset is not None:
        return preset_named(preset)
    from isthmus.plan.units import load_module, units_of

    assert module is not None
    return units_of(load_module(module))
