"""A comparison as plain values for `--json`, as tables, and in sentences."""

from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus.plan.assumptions import INPUT_BUFFERS
from isthmus.plan.figures import figures_table
from isthmus.plan.scan import EQUAL_SHARE, Comparison, link_speeds
from isthmus.plan.step import Setting, StepPlan, StepTime
from isthmus.plan.strategies import Strategy

SCHEMA = 3
_GIGA = 1e9
_MEGA = 1e6


def build_report(comparison: Comparison, setting: Setting) -> dict[str, Any]:
    """Everything about a comparison."""
    times = {plan.strategy.name: comparison.time(plan) for plan in comparison.plans}
    model = setting.model
    return {
        "schema": SCHEMA,
        "model": {"name": model.name, "parameters": model.num_parameters, "units": len(model.units)},
        "cluster": asdict(setting.cluster),
        "links": asdict(comparison.links),
        "sources": dict(comparison.sources),
        "codec_speeds": asdict(comparison.codecs),
        "compute": asdict(comparison.compute),
        "element_bytes": asdict(setting.element_bytes),
        "input_buffers": INPUT_BUFFERS,
        "plain_backend": backend_name(setting),
        "memory_limit_bytes": comparison.memory_bytes,
        "strategies": {
            plan.strategy.name: _strategy(comparison, plan, times[plan.strategy.name]) for plan in comparison.plans
        },
        "winner": comparison.winner.strategy.name if comparison.winner else None,
        "crossovers": [asdict(crossover) for crossover in comparison.crossovers],
        "verdict": verdict(comparison),
        "notes": notes(comparison, setting),
    }


def backend_name(setting: Setting) -> str:
    """The backend of plain strategies."""
    if setting.world.reduce_scatter_passes == 1:
        return "nccl (true rings)"
    return "gloo (rings; its reduce-scatter is an all-reduce)"


def _strategy(comparison: Comparison, plan: StepPlan, time: StepTime) -> dict[str, Any]:
    return {
        "description": plan.strategy.description,
        "isthmus": None if plan.strategy.wire is None else asdict(plan.strategy.wire),
        "node_bytes": {str(phase): num_bytes for phase, num_bytes in plan.node_bytes.items()},
        "node_bytes_per_step": sum(plan.node_bytes.values()),
        "memory": asdict(plan.memory) | {"total": plan.memory.total},
        "fits": comparison.fits(plan),
        "phases": {str(phase): seconds for phase, seconds in time.phases.items()},
        "serial_s": time.serial_s,
        "step_s": time.step_s,
    }


def verdict(comparison: Comparison) -> list[str]:
    """The conclusions, in sentences; the first names the winner."""
    winner = comparison.winner
    if winner is None:
        return [f"Nothing fits into {(comparison.memory_bytes or 0) / 1e9:.3g} GB a rank, activations apart."]
    where = f"{comparison.links.inter_gbit_s:g} Gbit/s"
    sentences = [_against_plain(comparison, winner, where), _over_speeds(comparison)]
    if winner.strategy.is_compressed:
        sentences.append(
            "Bytes saved with a lossy codec cost accuracy, which no plan predicts: docs/convergence.md measures it."
        )
    return sentences


def _best(comparison: Comparison, kind: str) -> StepPlan | None:
    """The best candidate of a kind: "plain", "exact", "compressed"."""
    return comparison.preferred([plan for plan in comparison.candidates if _kind(plan.strategy) == kind])


def _kind(strategy: Strategy) -> str:
    return "plain" if strategy.is_plain else "compressed" if strategy.is_compressed else "exact"


def _against_plain(comparison: Comparison, winner: StepPlan, where: str) -> str:
    name, step_s = winner.strategy.name, comparison.time(winner).step_s
    if winner.strategy.is_plain:
        isthmus = _best(comparison, "compressed") or _best(comparison, "exact")
        if isthmus is None:
            return f"At {where} {name} is best: {_seconds(step_s)} a step."
        other_s = comparison.time(isthmus).step_s
        doubt = f", less than {EQUAL_SHARE:.0%} apart, which no such model can tell" if other_s < step_s else ""
        return (
            f"At {where} Isthmus does not pay: {name} takes {_seconds(step_s)} a step, "
            f"{isthmus.strategy.name} {_seconds(other_s)}{doubt}."
        )
    plain = _best(comparison, "plain")
    if plain is None:
        return f"At {where} {name} is best: {_seconds(step_s)} a step."
    plain_s = comparison.time(plain).step_s
    return (
        f"At {where} {name} is best: {_seconds(step_s)} a step against {_seconds(plain_s)} of {plain.strategy.name}, "
        f"the best plain one: {plain_s / step_s:.2f} times as fast."
    )


def _over_speeds(comparison: Comparison) -> str:
    crossovers = comparison.crossovers
    if not crossovers:
        first = comparison.preferred(comparison.candidates, link_speeds()[0])
        assert first is not None
        return f"From 1 to 800 Gbit/s {first.strategy.name} is to be preferred."
    parts = [f"{crossovers[0].below} up to {crossovers[0].inter_gbit_s:.3g} Gbit/s"]
    parts += [f"then {c.above} up to {n.inter_gbit_s:.3g}" for c, n in pairwise(crossovers)]
    parts.append(f"beyond that {crossovers[-1].above}")
    return f"To be preferred: {', '.join(parts)}."


def notes(comparison: Comparison, setting: Setting) -> list[str]:
    """The assumptions of the figures."""
    found = [
        *_origins(comparison, setting),
        f"Compute: {_seconds(comparison.compute.seconds)} a step ({comparison.compute.source}).",
        f"Codec: {comparison.codecs.source}.",
        f"Plain strategies, and what Isthmus leaves to the ordinary backend: {backend_name(setting)}.",
        "Bytes are tested against counters of real runs. Times are a model, compared with one GPU (docs/plan.md), "
        "never with a real network.",
    ]
    if any(plan.strategy.wire is not None and plan.strategy.wire.weights == "delta" for plan in comparison.plans):
        found.append(
            "full: without waits of the host, as in prepared models; an H200 that waited took longer (docs/plan.md)."
        )
    if setting.cluster.nodes == 1:
        found.append("One node: nothing crosses, and Isthmus does what the ordinary backend does.")
    return found


def _origins(comparison: Comparison, setting: Setting) -> list[str]:
    """The figures of cluster and links, a sentence for each of their sources."""
    values = asdict(setting.cluster) | asdict(comparison.links)
    by_source: dict[str, list[str]] = {}
    for name, source in comparison.sources.items():
        by_source.setdefault(source, []).append(f"{name} {values[name]:g}")
    return [f"{source[:1].upper()}{source[1:]}: {', '.join(found)}." for source, found in by_source.items()]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def print_comparison(comparison: Comparison, setting: Setting, console: Console) -> None:
    """Print bytes, times, memory, the verdict, and its assumptions."""
    model, cluster = setting.model, setting.cluster
    console.print(
        f"{model.name}: {model.num_parameters:,} parameters in {len(model.units)} units, on {cluster.nodes} nodes x "
        f"{cluster.ranks_per_node} ranks; plain strategies on {backend_name(setting)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_bytes_table(comparison))
    console.print(_time_table(comparison))
    for sentence in verdict(comparison):
        console.print(f"[bold]{sentence}[/bold]", highlight=False, soft_wrap=True)
    console.print()
    for note in notes(comparison, setting):
        console.print(f"- {note}", highlight=False, soft_wrap=True)


def _bytes_table(comparison: Comparison) -> Table:
    largest = max(sum(plan.node_bytes.values()) for plan in comparison.plans)
    unit, name = (_GIGA, "GB") if largest >= _GIGA else (_MEGA, "MB")
    columns = ["weights\nforward", "weights\nbackward", "gradients", "in all", "memory\nGB a rank", "of it\nresiduals"]
    table = figures_table("strategy", f"{name} a step that leave each node", columns)
    for plan in comparison.plans:
        parts = [*plan.node_bytes.values(), sum(plan.node_bytes.values())]
        memory = f"{plan.memory.total / _GIGA:.2f}" + ("" if comparison.fits(plan) else " (!)")
        figures = [f"{part / unit:.2f}" for part in parts]
        table.add_row(plan.strategy.name, *figures, memory, f"{plan.memory.residuals / _GIGA:.2f}")
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
