"""How pictures draw a strategy, and the picture of `isthmus plan --plot`. Needs matplotlib."""

from typing import Any

from matplotlib.figure import Figure

from isthmus.plan.report import in_seconds, over_speeds
from isthmus.plan.scan import Comparison, scanned_gbit_s
from isthmus.plan.step import Setting
from isthmus.plan.strategies import Strategy

# A colour for each way to communicate; what is named without its bits has those of 4.
_COLOURS = {
    "ddp": "#b5838d",
    "ddp-bf16": "#8a5a66",
    "ddp-quant": "#2f6f8f",
    "fsdp": "#7f7f7f",
    "fsdp-node": "#a8a8a8",
    "hsdp": "#1f1f1f",
    "none": "#4c9be8",
    "hsdp-none": "#1b5fa8",
    "flat-tagc": "#e8a33d",
    "tagc": "#d1495b",
    "tagc-node": "#e07a8b",
    "hsdp-tagc": "#7a1f2e",
    "quant": "#2a9d5c",
    "hsdp-quant": "#14532d",
    "quant-node": "#5cb88a",
    "full": "#0b7a75",
    "quant2": "#86c5a0",
    "hsdp-quant2": "#4f8f6b",
    "pp": "#6a4c93",
}


def drawn_as(strategy: Strategy) -> dict[str, Any]:
    """The line of a strategy: its colour, dashes for its layout, thick where it defers reductions."""
    name = strategy.name.removesuffix("-last")
    return {
        "color": _COLOURS.get(name) or _COLOURS[name.rstrip("0123456789")],
        "linewidth": 2.4 if strategy.defers else 1.6,
        "linestyle": "--" if strategy.hybrid_sharded else ":" if strategy.is_ddp else "-",
    }


def picture_of(comparison: Comparison, setting: Setting) -> Figure:
    """Step time over the rate of the link between nodes: a line a strategy, a dot where another is to be preferred."""
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots()
    link = comparison.links.inter_gbit_s
    rates = sorted({*scanned_gbit_s(), link})
    for plan in comparison.plans:
        seconds = [comparison.time(plan, rate).step_s for rate in rates]
        fits = comparison.fits(plan)
        label = plan.strategy.name + ("" if fits else " (does not fit)")
        axes.plot(rates, seconds, **drawn_as(plan.strategy), label=label, alpha=1.0 if fits else 0.3)
    axes.set(xscale="log", yscale="log", xlim=(rates[0], rates[-1]))
    axes.set(xlabel="link between nodes, Gbit/s of a node", ylabel="seconds a step, overlapped")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    plans = {plan.strategy.name: plan for plan in comparison.plans}
    for crossover in comparison.crossovers:
        rate = crossover.inter_gbit_s
        axes.axvline(rate, color="black", linewidth=0.6, linestyle=":")
        axes.plot([rate], [comparison.time(plans[crossover.above], rate).step_s], "o", color="black", markersize=5)
    winner = comparison.winner
    best = "nothing fits" if winner is None else f"{winner.strategy.name}, {in_seconds(comparison.time(winner).step_s)}"
    axes.axvline(link, color="#c1121f", linewidth=1.2, label=f"{link:g} Gbit/s: {best}")
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right center")
    cluster, model = setting.cluster, setting.model
    figure.suptitle(
        f"{model.name}, {model.num_parameters / 1e6:,.1f} M parameters, {cluster.nodes} nodes x "
        f"{cluster.ranks_per_node} ranks: predicted\n{over_speeds(comparison) if winner else ''}",
        fontsize="medium",
    )
    return figure
