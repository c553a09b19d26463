"""Draws the figures of `isthmus bench convergence`."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.benchmarks.convergence.arms import ARMS, BASELINE
from isthmus.benchmarks.convergence.summary import ArmSummary, Comparison, compared_lrs

_COLOURS = {
    "quant": "#1b5fa8",
    "tagc, two tiers": "#d1495b",
    "tagc, flat": "#e8a33d",
    "noise": "#999999",
    "exact": "#1f1f1f",
}
#: Below this gaps are drawn on a linear scale, above on a logarithmic one.
_LINEAR_PERCENT = 1.0
_PERCENT_TICKS = (-10, -5, -2, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)
_BIT_TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32)


def draw_comparison(comparison: Comparison, folder: Path, name: str) -> list[Path]:
    """Write the gap over bits, the loss over bytes and, where steps were timed, over time. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}_gap.png", folder / f"{name}_bytes.png"]
    _draw_gaps(comparison, paths[0])
    _draw_bytes(comparison, paths[1])
    if comparison.step_s:
        paths.append(folder / f"{name}_time.png")
        _draw_time(comparison, paths[2])
    return paths


def _draw_gaps(comparison: Comparison, path: Path) -> None:
    lrs = compared_lrs(comparison)
    figure, axes = pyplot.subplots(
        1, len(lrs), figsize=(7 * len(lrs), 5.5), layout="constrained", squeeze=False, sharey=True
    )
    for panel, lr in zip(axes[0], lrs, strict=True):
        summaries = [by_lr[lr] for name, by_lr in comparison.arms.items() if name != BASELINE and lr in by_lr]
        for summary in summaries:
            _draw_gap(panel, summary)
        for summary in front(summaries):
            assert summary.gap is not None
            panel.annotate(
                summary.arm,
                (summary.crossing_bits, 100 * summary.gap.mean),
                fontsize=7,
                xytext=(4, 4),
                textcoords="offset points",
            )
        panel.set_xscale("log")
        panel.set_xticks(_BIT_TICKS, [f"{bits:g}" for bits in _BIT_TICKS])
        panel.set_xticks([], minor=True)
        panel.set_xlim(_BIT_TICKS[0] * 0.9, _BIT_TICKS[-1] * 1.3)
        panel.set_yscale("symlog", linthresh=_LINEAR_PERCENT)
        low, high = panel.get_ylim()
        panel.set_yticks(_PERCENT_TICKS, [f"{percent:g}" for percent in _PERCENT_TICKS])
        panel.set_yticks([], minor=True)
        panel.set_ylim(min(low, -_LINEAR_PERCENT), max(1.3 * high, _LINEAR_PERCENT))
        panel.axhline(0, color=_COLOURS["exact"], linewidth=0.8)
        panel.set(title=f"learning rate {lr:g}", xlabel="bits a crossing element, from the transports' counters")
        panel.grid(alpha=0.3)
    axes[0, 0].set_ylabel("gap of validation loss to exact, %, with its 95% interval")
    _legend_of_families(axes[0, 0])
    _save(figure, comparison, path)


def _draw_gap(axes: Axes, summary: ArmSummary) -> None:
    if summary.gap is None:
        return
    half_width = summary.gap.half_width if summary.gap.num_values > 1 else 0.0
    axes.errorbar(
        summary.crossing_bits,
        100 * summary.gap.mean,
        yerr=100 * half_width,
        color=_COLOURS[family(summary.arm)],
        marker="s" if ARMS[summary.arm].options.get("error_feedback") == "on" else "o",
        markersize=5,
        capsize=2,
        linewidth=0.8,
    )


def _legend_of_families(axes: Axes) -> None:
    for name, colour in _COLOURS.items():
        if name != "exact":
            axes.plot([], [], "o", color=colour, label=name)
    axes.plot([], [], "s", color="#999999", label="quant: with error feedback")
    axes.legend(fontsize=8, loc="lower left")


def family(arm: str) -> str:
    """The key of an arm's colour."""
    options = ARMS[arm].options
    if ARMS[arm].noise:
        return "noise"
    if options["codec"] == "tagc":
        return "tagc, flat" if options["tiers"] == "flat" else "tagc, two tiers"
    return "exact"


def front(summaries: Sequence[ArmSummary]) -> list[ArmSummary]:
    """Those to which no other has both fewer bits and a smaller gap."""
    known = [(summary.crossing_bits, summary.gap.mean, summary) for summary in summaries if summary.gap]
    best: list[ArmSummary] = []
    lowest = float("inf")
    for _, gap, summary in sorted(known, key=lambda each: each[:2]):
        if gap < lowest:
            best.append(summary)
            lowest = gap
    return best


def _shown(comparison: Comparison, lr: float) -> list[ArmSummary]:
    """Arms for the curves: the baseline, and those on the front."""
    at_lr = [by_lr[lr] for by_lr in comparison.arms.values() if lr in by_lr]
    lossy = [summary for summary in at_lr if summary.arm != BASELINE]
    return [summary for summary in at_lr if summary.arm == BASELINE] + front(lossy)


def _draw_bytes(comparison: Comparison, path: Path) -> None:
    lr = compared_lrs(comparison)[0]
    figure, axes = pyplot.subplots(figsize=(8, 5.5), layout="constrained")
    for summary in _shown(comparison, lr):
        megabytes = [sent_bytes / 1e6 for _, sent_bytes in summary.curve]
        _draw_curve(axes, summary, megabytes)
    axes.set_xscale("log")
    axes.set(xlabel="MB of gradients that crossed between nodes, all nodes together")
    _finish_curves(axes, f"Validation loss over bytes, learning rate {lr:g}")
    _save(figure, comparison, path)


def _draw_time(comparison: Comparison, path: Path) -> None:
    lr = compared_lrs(comparison)[0]
    links = list(comparison.step_s)
    figure, axes = pyplot.subplots(1, len(links), figsize=(7 * len(links), 5), layout="constrained", squeeze=False)
    for panel, link in zip(axes[0], links, strict=True):
        for summary in _shown(comparison, lr):
            step_s = comparison.step_s[link].get(summary.arm)
            if step_s is not None:
                num_points = len(summary.curve)
                ends = [comparison.setting.steps * (index + 1) / num_points for index in range(num_points)]
                _draw_curve(panel, summary, [end * step_s for end in ends])
        panel.set(xlabel=f"steps x median step time at {link}, s")
        _finish_curves(panel, f"Validation loss over time, link {link}")
    _save(figure, comparison, path)


def _draw_curve(axes: Axes, summary: ArmSummary, xs: Sequence[float]) -> None:
    losses = [loss for loss, _ in summary.curve]
    axes.plot(xs, losses, marker=".", linewidth=1.4, label=summary.arm, color=None if summary.arm != BASELINE else "k")


def _finish_curves(axes: Axes, title: str) -> None:
    axes.set(title=title, ylabel="validation loss, nats a byte")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _save(figure: Figure, comparison: Comparison, path: Path) -> None:
    setting = comparison.setting
    figure.suptitle(f"{setting.optimizer}, {setting.nodes} nodes, {setting.steps} steps ({comparison.stage})")
    # Without the date and version that differ from run to run.
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)
