"""The picture of a report of `isthmus bench training`. Needs matplotlib."""

from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.benchmarks.training.report import unit_of
from isthmus.plan.picture import drawn_as
from isthmus.plan.strategies import ARMS

_SMOOTHED_STEPS = 5
_PHASE_COLOURS = {"step": "#b8b8b8", "compute": "#b8b8b8", "all_gather": "#4c9be8", "reduce_scatter": "#d1495b"}


def picture_of(report: dict[str, Any]) -> Figure:
    """Four panels: loss over steps and over time, bytes and time of a step."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    link = report["headline_link"]
    _draw_loss(axes[0, 0], report, seconds_a_step=None)
    axes[0, 0].set(title="Training loss over steps", xlabel="step")
    _draw_loss(axes[0, 1], report, seconds_a_step="median_step_s")
    axes[0, 1].set(title=f"Loss over time, link {link}", xlabel="step x median step time at this link, s")
    _draw_bytes(axes[1, 0], report)
    _draw_phases(axes[1, 1], report)
    axes[1, 1].set(title=f"Time of a step, link {link}", xlabel=unit_of(report)[0])
    arguments = report["arguments"]
    place = report["network"] if arguments["here"] or arguments["islands"] else f"one machine ({report['network']})"
    figure.suptitle(
        f"Byte-level GPT, {report['model']['num_parameters'] / 1e6:.1f} M parameters, {arguments['dtype']}, "
        f"{arguments['nodes']} nodes x {arguments['ranks_per_node']} ranks on {place}"
    )
    return figure


def _draw_loss(axes: Axes, report: dict[str, Any], seconds_a_step: str | None) -> None:
    for name, arm in report["arms"].items():
        smoothed = _smoothed_losses(arm["steps"])
        unit = arm[seconds_a_step] if seconds_a_step else 1
        xs = [unit * (step + 1) for step in range(len(smoothed))]
        axes.plot(
            xs,
            smoothed,
            label=f"{name} (val {arm['val_loss']:.3f})",
            **drawn_as(ARMS[name]),
        )
    axes.set_ylabel(f"nats a byte, mean of {_SMOOTHED_STEPS} steps")
    axes.grid(alpha=0.3)
    axes.legend()


def _smoothed_losses(steps: list[dict[str, Any]]) -> list[float]:
    """Mean training loss of each step and those before it, `_SMOOTHED_STEPS` in all."""
    losses = [step["loss"] for step in steps]
    return [fmean(losses[max(0, end - _SMOOTHED_STEPS) : end]) for end in range(1, len(losses) + 1)]


def _draw_bytes(axes: Axes, report: dict[str, Any]) -> None:
    columns = {"all_gather": "all-gather (weights)", "reduce_scatter": "reduction (gradients)"}
    arms = report["arms"].values()
    megabytes = {phase: [arm[f"{phase}_link_bytes_per_step"] / 1e6 for arm in arms] for phase in columns}
    _draw_stacks(axes, report, {columns[phase]: (phase, widths) for phase, widths in megabytes.items()})
    axes.set(title="Bytes between nodes in a step", xlabel="MB, sum over nodes' links")


def _draw_phases(axes: Axes, report: dict[str, Any]) -> None:
    arms = [arm["phases_s"] for arm in report["arms"].values()]
    _, factor, digits = unit_of(report)
    parts = {phase.replace("_", "-"): (phase, [arm[phase] * factor for arm in arms]) for phase in arms[0]}
    _draw_stacks(axes, report, parts, digits)


def _draw_stacks(
    axes: Axes, report: dict[str, Any], parts: dict[str, tuple[str, list[float]]], digits: int = 2
) -> None:
    """One horizontal bar an arm; parts: label -> (phase, width of each arm)."""
    names = list(report["arms"])
    lefts = [0.0] * len(names)
    for label, (phase, widths) in parts.items():
        axes.barh(names, widths, left=lefts, color=_PHASE_COLOURS[phase], label=label)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for row, total in enumerate(lefts):
        axes.text(total, row, f" {total:.{digits}f}", va="center")
    axes.set_xlim(0, max(lefts) * 1.15)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.legend()
