#!/usr/bin/env python3
"""Draws the figure of the demo from a report of `isthmus bench training`.

Usage: demo_figure.py REPORT PNG.
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from isthmus.plan.strategies import ARMS

# A colour for each way to communicate; the layout is told by the line, deferred reductions by its width.
COLOURS = {
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
}
_SMOOTHED_STEPS = 5
_PHASE_COLOURS = {"step": "#b8b8b8", "compute": "#b8b8b8", "all_gather": "#4c9be8", "reduce_scatter": "#d1495b"}


def draw_report(report: dict[str, Any], path: Path) -> None:
    """Write four panels: loss over steps and over time, bytes and time of a step."""
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    link = report["headline_link"]
    _draw_loss(axes[0, 0], report, seconds_a_step=None)
    axes[0, 0].set(title="Training loss over steps", xlabel="step")
    _draw_loss(axes[0, 1], report, seconds_a_step="median_step_s")
    axes[0, 1].set(title=f"Loss over time, link {link}", xlabel="step x median step time at this link, s")
    _draw_bytes(axes[1, 0], report)
    _draw_phases(axes[1, 1], report)
    axes[1, 1].set(title=f"Time of a step, link {link}", xlabel="s")
    arguments = report["arguments"]
    place = report["network"] if arguments["here"] else f"one machine ({report['network']})"
    figure.suptitle(
        f"Byte-level GPT, {report['model']['num_parameters'] / 1e6:.1f} M parameters, {arguments['dtype']}, "
        f"{arguments['nodes']} nodes x {arguments['ranks_per_node']} ranks on {place}"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_loss(axes: Axes, report: dict[str, Any], seconds_a_step: str | None) -> None:
    for name, arm in report["arms"].items():
        smoothed = _smoothed_losses(arm["steps"])
        unit = arm[seconds_a_step] if seconds_a_step else 1
        xs = [unit * (step + 1) for step in range(len(smoothed))]
        axes.plot(
            xs,
            smoothed,
            color=COLOURS[name.removesuffix("-last")],
            label=f"{name} (val {arm['val_loss']:.3f})",
            linewidth=2.4 if ARMS[name].defers else 1.6,
            linestyle=line_style(name),
        )
    axes.set_ylabel(f"nats a byte, mean of {_SMOOTHED_STEPS} steps")
    axes.grid(alpha=0.3)
    axes.legend()


def _smoothed_losses(steps: list[dict[str, Any]]) -> list[float]:
    """Mean training loss of each step and those before it, `_SMOOTHED_STEPS` in all."""
    losses = [step["loss"] for step in steps]
    return [fmean(losses[max(0, end - _SMOOTHED_STEPS) : end]) for end in range(1, len(losses) + 1)]


def line_style(arm: str) -> str:
    """The line style of an arm's layout."""
    return "--" if ARMS[arm].hybrid_sharded else "-"


def _draw_bytes(axes: Axes, report: dict[str, Any]) -> None:
    columns = {"all_gather": "all-gather (weights)", "reduce_scatter": "reduction (gradients)"}
    _draw_stacks(
        axes,
        report,
        {label: (phase, f"{phase}_link_bytes_per_step", 1e6) for phase, label in columns.items()},
    )
    axes.set(title="Bytes between nodes in a step, audited", xlabel="MB, sum over nodes' links")


def _draw_phases(axes: Axes, report: dict[str, Any]) -> None:
    phases = next(iter(report["arms"].values()))["phases_s"]
    _draw_stacks(axes, report, {phase.replace("_", "-"): (phase, None, 1.0) for phase in phases})


def _draw_stacks(axes: Axes, report: dict[str, Any], parts: dict[str, tuple[str, str | None, float]]) -> None:
    """One horizontal bar an arm; parts: label -> (phase, key of the arm or None for its phases_s, unit)."""
    names = list(report["arms"])
    lefts = [0.0] * len(names)
    for label, (phase, key, unit) in parts.items():
        arms = report["arms"].values()
        widths = [(arm[key] if key else arm["phases_s"][phase]) / unit for arm in arms]
        axes.barh(names, widths, left=lefts, color=_PHASE_COLOURS[phase], label=label)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for row, total in enumerate(lefts):
        axes.text(total, row, f" {total:.2f}", va="center")
    axes.set_xlim(0, max(lefts) * 1.15)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.legend()


if __name__ == "__main__":
    draw_report(json.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
