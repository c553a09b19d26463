"""Prints comparisons."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from isthmus.plan.report import backend_name, notes, verdict
from isthmus.plan.scan import Comparison
from isthmus.plan.step import Setting

_GIGA = 1e9
_MEGA = 1e6


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
    table = strategy_table(f"{name} a step that leave each node", columns)
    for plan in comparison.plans:
        parts = [*plan.node_bytes.values(), sum(plan.node_bytes.values())]
        memory = f"{plan.memory.total / _GIGA:.2f}" + ("" if comparison.fits(plan) else " (!)")
        figures = [f"{part / unit:.2f}" for part in parts]
        table.add_row(plan.strategy.name, *figures, memory, f"{plan.memory.residuals / _GIGA:.2f}")
    return table


def _time_table(comparison: Comparison) -> Table:
    columns = ["forward\ngather", "backward\ngather", "reduction", "compute", "one by\none", "over-\nlapped"]
    table = strategy_table(
        f"Seconds a step at {comparison.links.inter_gbit_s:g} Gbit/s: phases, and the whole", columns
    )
    for plan in comparison.plans:
        time = comparison.time(plan)
        figures = [*time.phases.values(), time.compute_s, time.serial_s, time.step_s]
        name = plan.strategy.name
        shown = f"[bold]{name}[/bold]" if plan is comparison.winner else name
        table.add_row(shown, *(f"{figure:.3f}" for figure in figures))
    return table


def strategy_table(title: str, columns: list[str]) -> Table:
    """A table without rows: the strategy, then columns of figures."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("strategy", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
