"""Draws scaling.png from a report of `isthmus bench scaling`."""

from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

from isthmus.benchmarks.scaling.config import Layout
from isthmus.benchmarks.training.figure import COLOURS, line_style

_PANELS = {"node_mb_per_step": "MB a step out of each node", "communication_s": "s a step in collectives, link {link}"}


def draw_scaling(report: dict[str, Any], path: Path) -> None:
    """Write bytes and seconds over nodes: a row of panels for each number of ranks a node."""
    layouts = [Layout.parse(name) for name in report["layouts"]]
    rows = sorted({layout.ranks_per_node for layout in layouts})
    figure, axes = pyplot.subplots(len(rows), 2, figsize=(12, 4 * len(rows)), layout="constrained", squeeze=False)
    for row, ranks_per_node in enumerate(rows):
        own = sorted((each for each in layouts if each.ranks_per_node == ranks_per_node), key=lambda each: each.nodes)
        for column, (figure_name, title) in enumerate(_PANELS.items()):
            _draw_lines(axes[row, column], report, own, figure_name)
            ranks = f"{ranks_per_node} rank{'s' if ranks_per_node > 1 else ''} a node"
            axes[row, column].set(title=f"{title.format(link=report['headline_link'])}, {ranks}", xlabel="nodes")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_lines(axes: Axes, report: dict[str, Any], layouts: list[Layout], figure_name: str) -> None:
    nodes = [layout.nodes for layout in layouts]
    for arm in report["layouts"][str(layouts[0])]:
        values = [report["layouts"][str(layout)][arm][figure_name] for layout in layouts]
        axes.plot(nodes, values, marker="o", color=COLOURS[arm], linestyle=line_style(arm), label=arm)
    axes.set_xscale("log", base=2)
    axes.set_xticks(nodes, [str(count) for count in nodes])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
