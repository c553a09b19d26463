"""The first stage of `isthmus bench convergence`: every arm at two learning rates, in one process a run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import isthmus
from isthmus._C import SimulatedNodes
from isthmus.bench.convergence_arms import ARMS, BASELINE, CodecArm
from isthmus.bench.convergence_config import FIRST_LEARNING_RATES, Run, Setting, make_run, text_digest
from isthmus.bench.convergence_results import ResultsFile
from isthmus.bench.convergence_workers import Workers

STAGE = "screen"


@dataclass(frozen=True)
class Screening:
    """What is screened: `arms` at each of `seeds`, at `lr` and, with half_lr, half of it; lr None: tuned first."""

    setting: Setting
    arms: tuple[CodecArm, ...]
    seeds: tuple[int, ...]
    files: tuple[Path, ...]
    jobs: int = 1
    lr: float | None = None
    half_lr: bool = True

    def __post_init__(self) -> None:
        for name in ("seeds", "arms", "files"):
            if not getattr(self, name):
                raise ValueError(f"no {name}: expected some")
        if not 1 <= self.jobs <= 256:
            raise ValueError(f"jobs {self.jobs}: expected 1 to 256")
        for arm in self.arms:
            self.setting.check_ranks(arm.ranks_per_node)


def screen(screening: Screening, results: ResultsFile, console: Console) -> dict[str, str]:
    """Run what is not in `results` yet. Returns the arms that cannot run here, with the reason.

    Of every seed all arms come before the next seed, so that a table can be made at any time.
    """
    refused = {arm.name: reason for arm in screening.arms if (reason := why_refused(arm, screening.setting))}
    for name, reason in refused.items():
        console.print(f"[yellow]arm {name} cannot run: {reason}", highlight=False)
    arms = [arm for arm in screening.arms if arm.name not in refused]
    text = text_digest(screening.files)
    setting = screening.setting
    with Workers(screening.jobs, screening.files) as workers:

        def finish(runs: Sequence[Run]) -> None:
            _finish(workers, runs, results, console)

        lr = screening.lr or tune(screening, text, results, finish)
        rates = (lr, lr / 2) if screening.half_lr else (lr,)
        console.print(f"{setting.optimizer}: learning rates {', '.join(f'{rate:g}' for rate in rates)}")
        for seed in screening.seeds:
            finish([make_run(STAGE, setting, arm, rate, seed, text) for rate in rates for arm in arms])
    return refused


def why_refused(arm: CodecArm, setting: Setting) -> str:
    """Why this build cannot run the arm; empty if it can."""
    try:
        coded_at_once = {"dense_steps": 0, "ramp_steps": 0}
        options = isthmus.Options(**(arm.options_for(setting.steps) | coded_at_once))
        nodes = SimulatedNodes(num_nodes=setting.nodes, ranks_per_node=arm.ranks_per_node, options=options)
        world_size = setting.nodes * arm.ranks_per_node
        nodes.reduce("unit", [torch.zeros(4096 * world_size) for _ in range(world_size)], 1.0)
    except isthmus.OptionError as error:
        return str(error)
    return ""


Finish = Callable[[Sequence[Run]], None]


def tune(screening: Screening, text: str, results: ResultsFile, finish: Finish) -> float:
    """The baseline's best learning rate: the lowest mean validation loss over the seeds, see `best_on_ladder`."""

    def mean_loss(lr: float) -> float:
        runs = [make_run(STAGE, screening.setting, ARMS[BASELINE], lr, seed, text) for seed in screening.seeds]
        finish(runs)
        losses = [_val_loss(results, run) for run in runs]
        return sum(losses) / len(losses)

    return best_on_ladder(FIRST_LEARNING_RATES[screening.setting.optimizer], mean_loss)


def best_on_ladder(first: float, loss: Callable[[float], float]) -> float:
    """The best of `first` times powers of two: from there down the slope, until the next one is worse."""
    best, best_loss = first, loss(first)
    for factor in (2.0, 0.5):
        while (next_loss := loss(best * factor)) < best_loss:
            best, best_loss = best * factor, next_loss
        if best != first:
            break
    return best


def _val_loss(results: ResultsFile, run: Run) -> float:
    result = results.result(run)
    assert result is not None
    return float("inf") if result["val_loss"] is None else float(result["val_loss"])


def _finish(workers: Workers, runs: Sequence[Run], results: ResultsFile, console: Console) -> None:
    """Do those of `runs` that are not in `results` yet."""
    missing = [run for run in runs if results.result(run) is None]
    start_s = time.monotonic()
    for done, (run, result) in enumerate(workers.finish(missing), 1):
        results.append(run, result)
        left_s = (time.monotonic() - start_s) / done * (len(missing) - done)
        _show(run, result, f"{done} of {len(missing)}, {timedelta(seconds=round(left_s))} left", console)


def _show(run: Run, result: dict[str, Any], progress: str, console: Console) -> None:
    loss = "diverged" if result["val_loss"] is None else f"{result['val_loss']:.4f}"
    console.print(f"{run}: {loss} ({result['seconds']:.0f} s; {progress})", highlight=False)
