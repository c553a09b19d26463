"""Summary of the results of `isthmus bench convergence`: gaps of validation loss to the baseline, pair by pair."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from isthmus.benchmarks.convergence.arms import ARMS, BASELINE, FLOOR, RENAMED, SETTLED
from isthmus.benchmarks.convergence.config import Setting
from isthmus.benchmarks.convergence.results import Results
from isthmus.benchmarks.convergence.runs import Run
from isthmus.benchmarks.convergence.statistics import Interval, mean_interval

#: A gap has settled if it changed by no more than this over the last quarter of the steps, or by no more than this
#: share of itself.
SETTLED_CHANGE = 0.001
SETTLED_SHARE = 0.2


@dataclass(frozen=True)
class Comparison:
    """Results that can be compared: of one stage, setting, text and version."""

    stage: str
    setting: Setting
    text: str
    versions: tuple[tuple[str, str], ...]
    #: Hashes of the native module that the runs had, sorted: more than one where it was built anew between them.
    native_builds: tuple[str, ...]
    #: By learning rate, the baseline's best first.
    baselines: dict[float, "Baseline"]
    #: Best learning rate first in each; in the table's order.
    arms: dict[str, dict[float, "ArmSummary"]]
    #: Seconds a step on shaped links, by link and arm.
    step_s: dict[str, dict[str, float]]
    #: Where nothing is sent, by learning rate; that of screening for finalists, too, since no codec runs in it.
    floor: dict[float, "ArmSummary"]

    @property
    def num_parameters(self) -> int:
        """The number of the model's parameters."""
        return next(iter(self.baselines.values())).num_parameters


@dataclass(frozen=True)
class Baseline:
    """The exact runs at one learning rate."""

    lr: float
    #: Mean over seeds.
    val_loss: float
    seeds: tuple[int, ...]
    num_parameters: int


@dataclass(frozen=True)
class ArmSummary:
    """The runs of one arm at one learning rate, against the baseline's of the same seeds.

    Gaps are shares of the baseline's validation loss, 0.01 for 1% more.
    """

    arm: str
    #: After each of `VALIDATED_SHARES`, over those seeds that reached the end; None if none did.
    gaps: tuple[Interval, ...] | None
    num_diverged: int
    #: That nodes sent for each element that crosses, all of the run's steps taken together.
    crossing_bits: float
    relative_error: float | None
    clipped_share: float
    #: Validation loss and bytes sent until then, after each of `VALIDATED_SHARES`; means over seeds.
    curve: tuple[tuple[float, float], ...]

    @property
    def gap(self) -> Interval | None:
        """After the last step; None if any seed diverged."""
        return self.gaps[-1] if self.gaps and not self.num_diverged else None

    @property
    def has_settled(self) -> bool:
        """Whether the mean gap is what it was three quarters through the run, see `SETTLED_CHANGE`."""
        if self.gaps is None:
            return False
        before, after = self.gaps[-2].mean, self.gaps[-1].mean
        return abs(after - before) <= max(SETTLED_CHANGE, SETTLED_SHARE * abs(after))


_Pair = tuple[Run, dict[str, Any], dict[str, Any]]
_Key = tuple[str, Setting, str, tuple[tuple[str, str], ...]]


def summarise(results: Results) -> tuple[list[Comparison], int]:
    """All comparisons, in the order of their first results; and how many results fit none.

    The latter are of arms that have left the table, or changed their options there, or whose baseline has not run.
    """
    groups: dict[_Key, list[tuple[Run, dict[str, Any]]]] = defaultdict(list)
    timed: dict[_Key, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    num_left_out = 0
    for record in results.records:
        run, result = _settled(Run.from_json(record["run"])), record["result"]
        if not _is_of_table(run):
            num_left_out += 1
        elif run.stage == "timed":
            timed[("real", run.setting, run.text, run.versions)][run.link][run.arm] = result["median_step_s"]
        else:
            groups[(run.stage, run.setting, run.text, run.versions)].append((run, result))
    comparisons = []
    for key, members in groups.items():
        pairs = _pairs(members)
        num_left_out += len(members) - len(pairs)
        if pairs:
            builds = tuple(sorted({result["native_build"] for _, result, _ in pairs}))
            arms = _arms(pairs)
            floor = arms.pop(FLOOR, {})
            comparisons.append(Comparison(*key, builds, _baselines(pairs), arms, dict(timed[key]), floor))
    return [replace(each, floor=_floor_of(each, comparisons)) for each in comparisons], num_left_out


def _floor_of(comparison: Comparison, comparisons: Sequence[Comparison]) -> dict[float, ArmSummary]:
    floors = [each.floor for each in comparisons if (each.setting, each.text) == (comparison.setting, comparison.text)]
    return comparison.floor or next(filter(None, floors), {})


def _settled(run: Run) -> Run:
    """As it would be called today."""
    options = tuple(option for option in run.options if option not in SETTLED.items())
    return replace(run, arm=RENAMED.get(run.arm, run.arm), options=options)


def _is_of_table(run: Run) -> bool:
    arm = ARMS.get(run.arm)
    options = dict(run.options)
    return (
        arm is not None and options == arm.options_for(run.setting.steps) and run.ranks_per_node == arm.ranks_per_node
    )


def _pairs(members: Sequence[tuple[Run, dict[str, Any]]]) -> list[_Pair]:
    """Every run with its result and that of the baseline with the same seed and learning rate."""
    baselines = {(run.lr, run.seed): result for run, result in members if run.arm == BASELINE}
    pairs = [(run, result, baselines.get((run.lr, run.seed))) for run, result in members]
    return [
        (run, result, baseline)
        for run, result, baseline in pairs
        if baseline is not None and baseline["val_loss"] is not None
    ]


def _baselines(pairs: Sequence[_Pair]) -> dict[float, Baseline]:
    by_lr: dict[float, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        if pair[0].arm == BASELINE:
            by_lr[pair[0].lr].append(pair)
    baselines = [
        Baseline(
            lr=lr,
            val_loss=fmean(result["val_loss"] for _, result, _ in of_lr),
            seeds=tuple(sorted(run.seed for run, _, _ in of_lr)),
            num_parameters=of_lr[0][1]["num_parameters"],
        )
        for lr, of_lr in by_lr.items()
    ]
    return {baseline.lr: baseline for baseline in sorted(baselines, key=lambda each: each.val_loss)}


def _arms(pairs: Sequence[_Pair]) -> dict[str, dict[float, ArmSummary]]:
    by_arm: dict[str, dict[float, list[_Pair]]] = {name: defaultdict(list) for name in ARMS}
    for pair in pairs:
        by_arm[pair[0].arm][pair[0].lr].append(pair)
    return {name: {lr: _summary(name, of_lr) for lr, of_lr in by_lr.items()} for name, by_lr in by_arm.items() if by_lr}


def _summary(name: str, pairs: Sequence[_Pair]) -> ArmSummary:
    finished = [pair for pair in pairs if pair[1]["val_loss"] is not None]
    errors = [result["relative_error"] for _, result, _ in pairs if result["relative_error"] is not None]
    points = list(zip(*(result["validated"] for _, result, _ in finished), strict=True))
    return ArmSummary(
        arm=name,
        gaps=_gaps(finished) if finished else None,
        num_diverged=len(pairs) - len(finished),
        crossing_bits=0.0 if name == FLOOR else fmean(_crossing_bits(run, result) for run, result, _ in pairs),
        relative_error=fmean(errors) if errors else None,
        clipped_share=fmean(result["clipped_share"] for _, result, _ in pairs),
        curve=tuple(
            (fmean(point["loss"] for point in seeds), fmean(point["sent_bytes"] for point in seeds)) for seeds in points
        ),
    )


def _gaps(pairs: Sequence[_Pair]) -> tuple[Interval, ...]:
    of_pairs = [
        [
            ours["loss"] / theirs["loss"] - 1
            for ours, theirs in zip(result["validated"], baseline["validated"], strict=True)
        ]
        for _, result, baseline in pairs
    ]
    return tuple(mean_interval(gaps) for gaps in zip(*of_pairs, strict=True))


def _crossing_bits(run: Run, result: dict[str, Any]) -> float:
    """Every node sends the pieces of all other nodes: P (N - 1) elements cross in a step, over all nodes.

    In an all-reduce the results cross, too, which are as many.
    """
    directions = 1 if run.setting.layout == "fsdp" else 2
    elements: int = directions * result["num_parameters"] * (run.setting.nodes - 1) * max(1, result["steps_done"])
    return float(result["sent_bytes"]) * 8 / elements


def compared_lrs(comparison: Comparison) -> list[float]:
    """The learning rates at which any other arm ran, the baseline's best first."""
    ran = {lr for name, by_lr in comparison.arms.items() if name != BASELINE for lr in by_lr}
    return [lr for lr in comparison.baselines if lr in ran]


def cheapest_within(comparison: Comparison, max_gap: float) -> ArmSummary | None:
    """The lossy arm with the fewest bits whose interval ends below `max_gap` at every learning rate it ran at."""
    good = []
    for name, by_lr in comparison.arms.items():
        gaps = [summary.gap for summary in by_lr.values()]
        if name != BASELINE and all(gap is not None and gap.high <= max_gap for gap in gaps):
            good.append(max(by_lr.values(), key=lambda summary: summary.crossing_bits))
    return min(good, key=lambda summary: summary.crossing_bits, default=None)
