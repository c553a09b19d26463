"""`isthmus plan`: bytes, time and memory of a training step, and which way to train is best."""

import json as json_module
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.benchmarks.common.options import option
from isthmus.cli.options import filled
from isthmus.cli.terminal import console
from isthmus.plan.ranges import check_range

if TYPE_CHECKING:
    from isthmus.plan import assumptions
    from isthmus.plan.units import Model


@dataclass(frozen=True)
class PlanArguments:
    """Arguments of `isthmus plan`; what is None comes from elsewhere."""

    preset: str | None = option(None, "A published model, such as llama2-7b; an unknown name lists them.")
    module: str | None = option(None, "A factory of a torch module, package.module:factory.")
    nodes: int | None = option(None, "Number of nodes.", show_default="2")
    ranks_per_node: int | None = option(None, "Ranks on each.", show_default="the machine's, or 8")
    inter: str | None = option(
        None, "What a node sends to others over all its NICs: 25gbit.", show_default="the machine's"
    )
    intra: str | None = option(None, "What a rank sends within its node: 600gbit.", show_default="the machine's")
    inter_latency_us: float | None = option(None, "Of a round between nodes.", show_default="20")
    intra_latency_us: float | None = option(None, "Of a round in a node.", show_default="5")
    machine: str | None = option(
        None,
        "A recorded machine, as for `isthmus topo --from`, or one that many have, such as dgx-spark (an unknown name "
        "lists them): speeds of its links.",
    )
    islands: bool = option(
        False, "Nodes are the islands of --machine: GPUs that NVLinks, a switch or a NUMA node joins."
    )
    strategies: tuple[str, ...] = option(
        (),
        "Which ways to train, of docs/plan.md's; hsdp-quant3 is hsdp-quant with 3 bits, so quant8 to quant1, full2 and "
        "others; an unknown name lists all.",
        show_default="those of 4 bits; with micro-batches those that one chooses from",
    )
    micro_batches: int = option(
        1,
        "Micro-batches of a step. With several, strategies come twice, reduced in each and (-last) in the last, and "
        "with them pp, a pipeline over the link between nodes.",
    )
    trainable: str | None = option(
        None,
        "What is trained, where the rest is frozen: a share of each parameter (0.01), or names of parameters "
        "('*lora_*,head.*').",
        show_default="all; of a module what requires gradients",
    )
    width: int | None = option(
        None, "Elements of a token between two blocks of --module, for strategy pp.", show_default="pp is left out"
    )
    backend: str = option("nccl", "What plain strategies run on: nccl or gloo.")
    dtype: str = option("bf16", "Type that parameters are gathered in: bf16, fp16 or fp32.")
    reduce_dtype: str = option("", "Type that gradients are reduced in.", show_default="--dtype")
    optimizer: str = option("adamw", "adamw, or muon, which needs more bits of codec quant.")
    lr: float = option(1e-4, "Learning rate (AdamW): decides how far weights move in a step.")
    weight_bits: float | None = option(
        None,
        "With weights as differences (full): bits of each element of a shard that changed, as a run's "
        "`isthmus.stats()` has them.",
        show_default="by --lr",
    )
    codec_speed: str = option(
        "gpu",
        "GB/s of float32 of all codecs but none: 100, 100/150 (encode/decode), cpu (measured), gpu (assumed).",
    )
    compute_s: float | None = option(None, "Seconds of compute in a step.", show_default="from tokens")
    tokens: float = option(8192, "Tokens of a rank in a step.")
    tflops: float = option(989, "Peak TFLOP/s of a rank.")
    mfu: float = option(0.4, "Share of the peak that is used.")
    memory_gb: float | None = option(
        None, "Of a rank, activations apart: what needs more cannot win.", show_default="any"
    )


@filled(PlanArguments)
def plan(
    given: PlanArguments,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw step time over the link's rate for each strategy into this file (.png, .svg, .pdf).",
            show_default="none",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Predict bytes, time and memory of a training step, and which way to train is best over which links."""
    if plot is not None:
        from isthmus.plan.picture import picture_of  # says what to install before anything else
    from isthmus.plan import assumptions
    from isthmus.plan.packets import WireOptions
    from isthmus.plan.placement import ElementBytes
    from isthmus.plan.report import build_report, print_comparison
    from isthmus.plan.scan import Comparison
    from isthmus.plan.step import PipelinePlan, Setting, StepPlan
    from isthmus.plan.strategies import ACCUMULATING, DEFAULT_STRATEGIES, PIPELINE, check_deferred, strategies_named
    from isthmus.plan.volumes import world_formula

    speed_of = assumptions.parse_speed_gbit_s
    options = {
        "nodes": given.nodes,
        "ranks_per_node": given.ranks_per_node,
        "inter_gbit_s": None if given.inter is None else speed_of(given.inter, "--inter"),
        "intra_gbit_s": None if given.intra is None else speed_of(given.intra, "--intra"),
        "inter_latency_us": given.inter_latency_us,
        "intra_latency_us": given.intra_latency_us,
    }
    machine: assumptions.Facts = ("no --machine", {})
    if given.machine is not None or given.islands:
        machine = _machine(given)
    cluster, links, sources = assumptions.resolve(("given", options), machine)
    model = _model(given)
    setting = Setting(
        model=model,
        cluster=cluster,
        world=world_formula(given.backend, cluster.ranks_per_node),
        element_bytes=ElementBytes.of(given.dtype, given.reduce_dtype or given.dtype),
        micro_batches=given.micro_batches,
        optimizer=given.optimizer,
    )
    check_range("tokens", given.tokens, 1, 1e12)
    weight_bits = assumptions.weight_bits_at(given.lr) if given.weight_bits is None else given.weight_bits
    check_range("weight_bits", weight_bits, 0, 32)
    names = given.strategies or DEFAULT_STRATEGIES
    if given.micro_batches > 1 and not given.strategies:
        num_layers = sum(not unit.is_root for unit in model.units)
        can_pipeline = model.width is not None and 1 < cluster.nodes <= num_layers
        names = (*ACCUMULATING, *([PIPELINE.name] if can_pipeline else []))
    check_deferred("strategy", names, given.micro_batches)
    trained_share = model.num_trained / model.num_parameters
    if given.compute_s is None:
        compute = assumptions.compute_of_tokens(
            model.num_parameters, given.tokens, given.tflops, given.mfu, trained_share
        )
    else:
        compute = assumptions.Compute(given.compute_s, "given", assumptions.forward_share(trained_share))
    if given.memory_gb is not None:
        check_range("memory_gb", given.memory_gb, 0.001, 1e6)
    comparison = Comparison(
        plans=[
            PipelinePlan(setting, strategy, given.tokens) if strategy == PIPELINE else StepPlan(setting, strategy)
            for strategy in strategies_named(names, WireOptions(weight_bits=weight_bits), given.optimizer)
        ],
        links=links,
        codecs=assumptions.codec_speeds(given.codec_speed),
        compute=compute,
        memory_bytes=None if given.memory_gb is None else round(given.memory_gb * 1e9),
        sources=sources,
    )
    if plot is not None:
        picture_of(comparison, setting).savefig(plot)
    if json:
        print(json_module.dumps(build_report(comparison, setting), indent=1))
    else:
        print_comparison(comparison, setting, console())


def _machine(given: PlanArguments) -> "assumptions.Facts":
    """What --machine and --islands say. Raises ValueError."""
    from isthmus.plan import assumptions

    path = given.machine or ""
    if path in assumptions.OWNED and not given.islands:
        return assumptions.of_owned(path)
    if not Path(path).is_file():
        raise ValueError(
            f"machine '{path}': expected a file, or without --islands one of {', '.join(assumptions.OWNED)}"
        )
    from isthmus import _topology

    found = _topology.read_machine(path)
    return assumptions.of_islands(found) if given.islands else assumptions.of_machine(found, given.ranks_per_node)


def _model(given: PlanArguments) -> "Model":
    """The model that the options describe. Raises ValueError."""
    from isthmus.plan.units import PRESETS, load_module, preset, train_only, units_of

    if (given.preset is None) == (given.module is None):
        raise ValueError(f"expected one of --preset ({', '.join(PRESETS)}) and --module")
    if given.preset is not None:
        model = preset(given.preset)
    else:
        assert given.module is not None
        model = units_of(load_module(given.module))
    if given.width is not None:
        check_range("width", given.width, 1, 1 << 20)
        model = replace(model, width=given.width)
    return model if given.trainable is None else train_only(model, given.trainable)
