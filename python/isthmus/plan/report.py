"""A comparison as plain values for `--json`, as tables, and in sentences."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from isthmus.plan.assumptions import INPUT_BUFFERS
from isthmus.plan.placement import DDP, HSDP
from isthmus.plan.scan import EQUAL_SHARE, FASTEST_GBIT_S, SLOWEST_GBIT_S, Comparison
from isthmus.plan.step import PipelinePlan, Setting, StepPlan
from isthmus.plan.strategies import Strategy
from isthmus.report.advice import MUON_BITS

SCHEMA = 4
#: How to reduce in the last of several micro-batches, by whether a strategy is HSDP, and what a rank keeps until then.
_DEFER = {
    False: ("set_requires_gradient_sync", "whole gradients of the model, not reduced"),
    True: ("set_requires_all_reduce", "a shard that is reduced within the node"),
}
_GIGA = 1e9
_MEGA = 1e6


def build_report(comparison: Comparison, setting: Setting) -> dict[str, Any]:
    """Everything about a comparison."""
    model = setting.model
    return {
        "schema": SCHEMA,
        "model": {
            "name": model.name,
            "parameters": model.num_parameters,
            "trained": model.num_trained,
            "units": len(model.units),
        },
        "cluster": asdict(setting.cluster),
        "links": asdict(comparison.links),
        "sources": dict(comparison.sources),
        "codec_speeds": asdict(comparison.codecs),
        "compute": asdict(comparison.compute),
        "element_bytes": asdict(setting.element_bytes),
        "input_buffers": INPUT_BUFFERS,
        "micro_batches": setting.micro_batches,
        "optimizer": setting.optimizer,
        "plain_backend": backend_name(setting),
        "memory_limit_bytes": comparison.memory_bytes,
        "strategies": {plan.strategy.name: _strategy(comparison, plan) for plan in comparison.plans},
        "winner": comparison.winner.strategy.name if comparison.winner else None,
        "crossovers": [asdict(crossover) for crossover in comparison.crossovers],
        "verdict": verdict(comparison, setting),
        "notes": notes(comparison, setting),
    }


def backend_name(setting: Setting) -> str:
    """The backend of plain strategies."""
    if setting.world.reduce_scatter_passes == 1:
        return "nccl (true rings)"
    return "gloo (rings; its reduce-scatter is an all-reduce)"


def _strategy(comparison: Comparison, plan: StepPlan) -> dict[str, Any]:
    time = comparison.time(plan)
    return {
        "description": plan.strategy.description,
        "reduced_in_last": plan.strategy.defers,
        "isthmus": None if plan.strategy.wire is None else asdict(plan.strategy.wire),
        "node_bytes": {str(phase): num_bytes for phase, num_bytes in plan.node_bytes.items()},
        "node_bytes_per_step": sum(plan.node_bytes.values()),
        "memory": asdict(plan.memory) | {"total": plan.memory.total},
        "fits": comparison.fits(plan),
        "phases": {str(phase): seconds for phase, seconds in time.phases.items()},
        "serial_s": time.serial_s,
        "step_s": time.step_s,
    }


def verdict(comparison: Comparison, setting: Setting) -> list[str]:
    """The conclusions, in sentences; the first names the winner."""
    winner = comparison.winner
    if winner is None:
        return [f"Nothing fits into {(comparison.memory_bytes or 0) / 1e9:.3g} GB a rank, activations apart."]
    sentences = [_against_plain(comparison, winner), over_speeds(comparison)]
    trained_share = setting.model.num_trained / setting.model.num_parameters
    if trained_share < 1 and winner.strategy.is_plain and winner.strategy.placements in (HSDP, DDP):
        sentences.append(
            f"{winner.strategy.name.upper()} and nothing else: {trained_share:.2%} of the parameters are trained, and "
            "only their gradients cross."
        )
    other = comparison.preferred([plan for plan in comparison.candidates if not isinstance(plan, PipelinePlan)])
    if isinstance(winner, PipelinePlan) and other is not None:
        sentences.append(
            "pp takes a model that is cut into stages, as torch.distributed.pipelining runs it. Without one "
            f"{other.strategy.name} is best: {in_seconds(comparison.time(other).step_s)}."
        )
    if winner.strategy.is_compressed:
        sentences.append(
            "Bytes saved with a lossy codec cost accuracy, which no plan predicts: docs/convergence.md measures it."
        )
    return sentences


def _best(comparison: Comparison, is_asked: Callable[[Strategy], bool]) -> StepPlan | None:
    return comparison.preferred([plan for plan in comparison.candidates if is_asked(plan.strategy)])


def _against_plain(comparison: Comparison, winner: StepPlan) -> str:
    where = f"At {comparison.links.inter_gbit_s:g} Gbit/s"
    name, step_s = winner.strategy.name, comparison.time(winner).step_s
    is_best = f"{where} {name} is best: {in_seconds(step_s)} a step"
    if winner.strategy.is_plain:
        compressed = _best(comparison, lambda strategy: strategy.is_compressed)
        other = compressed or _best(comparison, lambda strategy: not strategy.is_plain)
    else:
        other = _best(comparison, lambda strategy: strategy.is_plain)
    if other is None:
        return f"{is_best}."
    other_s = comparison.time(other).step_s
    if winner.strategy.is_plain:
        doubt = f", less than {EQUAL_SHARE:.0%} apart, which no such model can tell" if other_s < step_s else ""
        return (
            f"{where} Isthmus does not pay: {name} takes {in_seconds(step_s)} a step, "
            f"{other.strategy.name} {in_seconds(other_s)}{doubt}."
        )
    return (
        f"{is_best} against {in_seconds(other_s)} of {other.strategy.name}, the best plain one: "
        f"{other_s / step_s:.2f} times as fast."
    )


def over_speeds(comparison: Comparison) -> str:
    """The strategies to prefer over all speeds between nodes, in a sentence. Something fits."""
    crossovers = comparison.crossovers
    if not crossovers:
        name = comparison.preferred_name(SLOWEST_GBIT_S)
        return f"From {SLOWEST_GBIT_S:g} to {FASTEST_GBIT_S:g} Gbit/s {name} is to be preferred."
    parts = [f"{crossovers[0].below} up to {crossovers[0].inter_gbit_s:.3g} Gbit/s"]
    parts += [f"then {c.above} up to {n.inter_gbit_s:.3g}" for c, n in pairwise(crossovers)]
    parts.append(f"beyond that {crossovers[-1].above}")
    return f"To be preferred: {', '.join(parts)}."


def notes(comparison: Comparison, setting: Setting) -> list[str]:
    """The assumptions of the figures."""
    values = asdict(setting.cluster) | asdict(comparison.links)
    by_source: dict[str, list[str]] = {}
    for name, source in comparison.sources.items():
        by_source.setdefault(source, []).append(f"{name} {values[name]:g}")
    found = [
        *(f"{source[:1].upper()}{source[1:]}: {', '.join(facts)}." for source, facts in by_source.items()),
        f"Compute: {in_seconds(comparison.compute.seconds)} a step ({comparison.compute.source}).",
        f"Codec: {comparison.codecs.source}.",
        f"Plain strategies, and what Isthmus leaves to the ordinary backend: {backend_name(setting)}.",
        "Bytes are tested against counters of real runs. Times are a model, compared with one GPU (docs/plan.md), "
        "never with a real network.",
    ]
    if any(plan.strategy.wire is not None and plan.strategy.wire.sends_differences for plan in comparison.plans):
        found.append(
            "full: without waits of the host, as in prepared models; an H200 that waited took longer (docs/plan.md)."
        )
    if setting.optimizer == "muon":
        found.append(
            f"Muon: {MUON_BITS} bits in place of 4: docs/choosing.md. Memory and bits of weights are AdamW's, and what "
            "Muon's own steps send is left out."
        )
    deferring = [plan for plan in comparison.plans if plan.strategy.defers]
    for hybrid, (call, kept) in _DEFER.items():
        of_kind = [plan for plan in deferring if plan.strategy.hybrid_sharded is hybrid and plan.memory.deferred]
        if of_kind:
            names = ", ".join(plan.strategy.name for plan in of_kind)
            found.append(
                f"{names}: reduced between nodes in the last of {setting.micro_batches} micro-batches, by "
                f"model.{call}(is_last); until then a rank keeps {kept}: {of_kind[0].memory.deferred / _GIGA:.3g} GB. "
                "The others are reduced in every micro-batch."
            )
    found += [
        f"pp: {plan.num_stages} stages, {plan.num_micro_batches} micro-batches through each: {plan.bubble:.0%} of a "
        f"step is bubble. No weights cross, but {plan.cut_bytes / _GIGA:.3g} GB of activations at each cut, and as "
        "much of their gradients."
        for plan in comparison.plans
        if isinstance(plan, PipelinePlan)
    ]
    if setting.cluster.ranks_per_node == 1 and any(plan.strategy.hybrid_sharded for plan in comparison.plans):
        found.append(
            "One rank a node: HSDP has nothing to shard over and saves no memory; a rank holds all, as in DDP. A "
            "pipeline over the nodes does save it: --micro-batches compares."
        )
    if setting.cluster.nodes == 1:
        found.append("One node: nothing crosses, and Isthmus does what the ordinary backend does.")
    return found


def in_seconds(seconds: float) -> str:
    """Seconds or milliseconds, as sentences have them."""
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def print_comparison(comparison: Comparison, setting: Setting, console: Console) -> None:
    """Print bytes, times, memory, the verdict, and its assumptions."""
    model, cluster = setting.model, setting.cluster
    trained = "" if model.num_trained == model.num_parameters else f", {model.num_trained:,} of them trained"
    console.print(
        f"{model.name}: {model.num_parameters:,} parameters in {len(model.units)} units{trained}, on "
        f"{cluster.nodes} nodes x {cluster.ranks_per_node} ranks; plain strategies on {backend_name(setting)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_bytes_table(comparison, setting.micro_batches))
    console.print(_time_table(comparison))
    for sentence in verdict(comparison, setting):
        console.print(f"[bold]{sentence}[/bold]", highlight=False, soft_wrap=True)
    console.print()
    for note in notes(comparison, setting):
        console.print(f"- {note}", highlight=False, soft_wrap=True)


def _bytes_table(comparison: Comparison, micro_batches: int) -> Table:
    largest = max(sum(plan.node_bytes.values()) for plan in comparison.plans)
    unit, name = (_GIGA, "GB") if largest >= _GIGA else (_MEGA, "MB")
    columns = ["weights\nforward", "weights\nbackward", "gradients", "in all", "memory\nGB a rank", "of it\nresiduals"]
    columns += ["of it\ndeferred", "reduced in\nmicro-batch"] if micro_batches > 1 else []
    table = figures_table("strategy", f"{name} a step that leave each node", columns)
    for plan in comparison.plans:
        parts = [*plan.node_bytes.values(), sum(plan.node_bytes.values())]
        memory = f"{plan.memory.total / _GIGA:.2f}" + ("" if comparison.fits(plan) else " (!)")
        figures = [f"{part / unit:.2f}" for part in parts]
        figures += [memory, f"{plan.memory.residuals / _GIGA:.2f}"]
        if micro_batches > 1:
            which = "the last" if plan.strategy.defers else "each"
            figures += [f"{plan.memory.deferred / _GIGA:.2f}", f"{which} of {micro_batches}"]
        table.add_row(plan.strategy.name, *figures)
    return table


def _time_table(comparison: Comparison) -> Table:
    columns = ["forward\ngather", "backward\ngather", "reduction", "compute", "one by\none", "over-\nlapped"]
    table = figures_table(
        "strategy", f"Seconds a step at {comparison.links.inter_gbit_s:g} Gbit/s: phases, and the whole", columns
    )
    for plan in comparison.plans:
        time = comparison.time(plan)
        figures = [*time.phases.values(), time.compute_s, time.serial_s, time.step_s]
        name = plan.strategy.name
        shown = f"[bold]{name}[/bold]" if plan is comparison.winner else name
        table.add_row(shown, *(f"{figure:.3f}" for figure in figures))
    return table


def figures_table(named: str, title: str, columns: Sequence[str]) -> Table:
    """A table without rows, in the form of all tables: names, whose column has the head `named`, and figures behind."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column(named, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
