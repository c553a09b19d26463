"""Draws the time of a step over the speed of the link between nodes."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from isthmus.plan.placement import DDP, FSDP, FSDP_NODE, HSDP, ZERO1, Placements
from isthmus.plan.report import backend_name
from isthmus.plan.scan import FASTEST_GBIT_S, SLOWEST_GBIT_S, Comparison, link_speeds
from isthmus.plan.step import Setting
from isthmus.plan.strategies import Strategy

# A colour for each way to communicate; the layout is told by the line.
_PLAIN, _EXACT, _FLAT, _DIFFERENCES = "#555555", "#2f7fd1", "#e8a33d", "#0b8f8f"
_CODECS = {"tagc": "#d1495b", "quant": "#7a4fbf"}
_LINES: dict[Placements, Any] = {DDP: ":", ZERO1: (0, (1, 3)), HSDP: "--", FSDP: "-", FSDP_NODE: "-."}
_TICKS_GBIT_S = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800)
#: Share of the figure's height, below the curves.
_ROOM_FOR_LABELS = 0.3
_NEAR_THE_EDGE = 300.0
_FORMATS = (".png", ".svg", ".pdf")


def check_format(path: Path) -> None:
    """Raise ValueError unless a figure can be written in the format that the name asks for."""
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"plot '{path}': expected a name that ends in {', '.join(_FORMATS)}")


def draw_comparison(comparison: Comparison, setting: Setting, path: Path) -> None:
    """Write the figure: every strategy, the given link, and where the preferred strategy changes."""
    figure, axes = pyplot.subplots(figsize=(10, 6.5), layout="constrained")
    speeds = link_speeds()
    for plan in comparison.plans:
        strategy = plan.strategy
        label = strategy.name + ("" if comparison.fits(plan) else " (does not fit)")
        step_s = [comparison.time(plan, speed).step_s for speed in speeds]
        width = 1.8 if comparison.fits(plan) else 0.8
        line = _LINES[strategy.placements]
        axes.plot(speeds, step_s, color=_colour(strategy), linestyle=line, linewidth=width, label=label)
    axes.set(xscale="log", yscale="log", xlim=(SLOWEST_GBIT_S, FASTEST_GBIT_S))
    _mark(axes, comparison)
    _label(axes, setting, comparison)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _colour(strategy: Strategy) -> str:
    if strategy.wire is None:
        return _PLAIN
    if not strategy.is_compressed:
        return _EXACT
    if strategy.wire.weights == "delta":
        return _DIFFERENCES
    return _FLAT if strategy.wire.tiers == "flat" else _CODECS[strategy.wire.codec]


def _mark(axes: Axes, comparison: Comparison) -> None:
    """Compute alone, the given link, and crossovers with their labels below the curves."""
    compute_s = comparison.compute.seconds
    if compute_s > 0:
        axes.axhline(compute_s, color="#999999", linewidth=0.8)
        axes.text(SLOWEST_GBIT_S, compute_s, " compute alone", va="bottom", color="#777777", fontsize=8)
    given = comparison.links.inter_gbit_s
    if SLOWEST_GBIT_S <= given <= FASTEST_GBIT_S:
        axes.axvline(given, color="#bbbbbb", linewidth=0.8, linestyle="--")
        axes.text(given, 0.99, f" {given:g} Gbit/s", transform=axes.get_xaxis_transform(), va="top", color="#777777")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom * (bottom / top) ** _ROOM_FOR_LABELS, top)
    for index, crossover in enumerate(comparison.crossovers):
        preferred = next(plan for plan in comparison.plans if plan.strategy.name == crossover.above)
        step_s = comparison.time(preferred, crossover.inter_gbit_s).step_s
        axes.plot([crossover.inter_gbit_s], [step_s], marker="o", color="black", markersize=6, zorder=5)
        axes.annotate(
            f"{crossover.inter_gbit_s:.3g} Gbit/s:\n{crossover.below} to {crossover.above}",
            (crossover.inter_gbit_s, step_s),
            xytext=(55 * (index % 3 - 1), -40 - 28 * (index % 3)),
            textcoords="offset points",
            ha="right" if crossover.inter_gbit_s > _NEAR_THE_EDGE else "center",
            fontsize=8,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            arrowprops={"arrowstyle": "-", "color": "#555555", "linewidth": 0.6},
        )


def _label(axes: Axes, setting: Setting, comparison: Comparison) -> None:
    axes.set_xticks(_TICKS_GBIT_S)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    model, cluster = setting.model, setting.cluster
    axes.set_title(
        f"{model.name}, {model.num_parameters / 1e9:.3g} B parameters, {cluster.nodes} nodes x "
        f"{cluster.ranks_per_node} ranks, {comparison.links.intra_gbit_s:g} Gbit/s within a node\n"
        f"plain: {backend_name(setting)}; a model, not a measurement",
        fontsize=10,
    )
    axes.set_xlabel("Gbit/s that a node sends to others")
    axes.set_ylabel("seconds a step, overlapped")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=9)
