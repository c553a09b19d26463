"""Gaps of validation loss to the baseline, pair by pair, as tables."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from scipy.stats import t as student_t

from isthmus.benchmarks.convergence.arms import BASELINE
from isthmus.benchmarks.convergence.results import Results, Run
from isthmus.plan.report import figures_table

_CONFIDENCE = 0.95
_HOW_TO_READ = """\
gap: validation loss over that of {against} with the same seed, weights and batches, less 1; the mean over seeds with
its 95% interval (Student's t). Negative: better than {against}.
bits: what the nodes' transports sent to each other, by their own counters, for each element that crosses a link.
error: squares that the codec dropped over squares that it was given, where measured; it does not predict the gap.
"""


@dataclass(frozen=True)
class ArmSummary:
    """An arm against the baseline with the same seeds. gaps: shares of its validation loss, of seeds that finished."""

    arm: str
    gaps: tuple[float, ...]
    num_diverged: int
    crossing_bits: float
    relative_error: float | None
    #: The slowest rank's mean.
    step_s: float

    @property
    def gap(self) -> str:
        """ "+0.12% ± 0.05", or without a width for a single value."""
        if self.num_diverged:
            return f"{self.num_diverged} diverged"
        width = f" ± {100 * half_width(self.gaps):.2f}" if len(self.gaps) > 1 else ""
        return f"{fmean(self.gaps):+.2%}{width}"


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95% confidence interval of the mean of two or more independent values."""
    count = len(values)
    quantile = float(student_t.ppf((1 + _CONFIDENCE) / 2, count - 1))
    return quantile * stdev(values) / math.sqrt(count)


def summarise(results: Results, against: str = BASELINE) -> Iterator[tuple[Run, float, list[ArmSummary]]]:
    """For each group of results that can be compared one of its runs, `against`'s mean loss, and all arms."""
    groups: dict[str, list[tuple[Run, dict[str, Any]]]] = defaultdict(list)
    for run, result in results.values():
        groups[run.compared_with].append((run, result))
    for members in groups.values():
        base = {run.seed: result["val_loss"] for run, result in members if run.arm == against}
        by_arm: dict[str, list[tuple[Run, dict[str, Any]]]] = defaultdict(list)
        for run, result in members:
            if base.get(run.seed) is not None:
                by_arm[run.arm].append((run, result))
        if by_arm.keys() - {against}:
            arms = [_arm(name, own, base) for name, own in by_arm.items()]
            known = [loss for loss in base.values() if loss is not None]
            yield members[0][0], fmean(known), sorted(arms, key=lambda each: -each.crossing_bits)


def _arm(name: str, own: Sequence[tuple[Run, dict[str, Any]]], base: dict[int, float]) -> ArmSummary:
    finished = [(run.seed, result["val_loss"]) for run, result in own if result["val_loss"] is not None]
    errors = [result["relative_error"] for _, result in own if result["relative_error"] is not None]
    return ArmSummary(
        arm=name,
        gaps=tuple(loss / base[seed] - 1 for seed, loss in finished),
        num_diverged=len(own) - len(finished),
        crossing_bits=fmean(_crossing_bits(run, result) for run, result in own),
        relative_error=fmean(errors) if errors else None,
        step_s=fmean(result.get("step_s", math.nan) for _, result in own),
    )


def _crossing_bits(run: Run, result: dict[str, Any]) -> float:
    """Every node sends the pieces of all other nodes: P (N - 1) elements cross in a step, over all nodes."""
    elements: int = result["num_parameters"] * (run.setting.nodes - 1) * max(1, result["steps_done"])
    return float(result["sent_bytes"]) * 8 / elements


def print_summary(results: Results, console: Console, against: str = BASELINE) -> None:
    """Print a table for each group of results. Raises ValueError if there is nothing to compare."""
    compared = list(summarise(results, against))
    if not compared:
        raise ValueError(f"nothing to compare: of {len(results)} results none has its run of {against} beside it")
    for run, loss, arms in compared:
        setting = run.setting
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        link = f" at {setting.link}" if setting.link else ""
        title = (
            f"{setting.nodes} nodes{link}, {setting.shape.num_layers} x {setting.shape.width}, {setting.dtype}, "
            f"{setting.steps} steps, {run.optimizers}; {against} ends at {loss:.4f}; text {run.text}; {versions}"
        )
        table = figures_table("arm", title, ["bits", "gap", "error", "seeds", *(["s a step"] if setting.link else [])])
        for arm in arms:
            error = "" if arm.relative_error is None else f"{arm.relative_error:.3f}"
            seeds = str(len(arm.gaps) + arm.num_diverged)
            gap = "" if arm.arm == against else arm.gap
            step = [f"{arm.step_s:.3f}"] if setting.link else []
            table.add_row(arm.arm, f"{arm.crossing_bits:.2f}", gap, error, seeds, *step)
        console.print(table)
    console.print(_HOW_TO_READ.format(against=against), highlight=False)
