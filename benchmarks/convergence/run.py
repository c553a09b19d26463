"""`isthmus bench convergence`: the cost in validation loss of reducing gradients in less than 32 bits.

A few arms are trained on the real backend, as processes on simulated nodes. Results go to one file, and the report is
made from that file alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

import isthmus
from isthmus.benchmarks.common.data import default_files
from isthmus.benchmarks.convergence.arms import BASELINE, CodecArm
from isthmus.benchmarks.convergence.config import ConvergenceConfig, Setting
from isthmus.benchmarks.convergence.results import Results, ResultsFile
from isthmus.benchmarks.convergence.runs import Run, make_run, text_digest
from isthmus.benchmarks.convergence.training import averaged, native_build, relative_error
from isthmus.benchmarks.simulate import SILENCE_MARGIN_S, Network, RankWorld, open_network

STAGE = "real"
TIMED_STAGE = "timed"
_MODULE = "isthmus.benchmarks.convergence.worker"
_TIMEOUT_S = 300
_SETUP_TIMEOUT_S = 180
#: Timed steps of an arm at a link, and how many of them in a row; one before each row is not timed: the link's bucket
#: is as the arm before left it.
_TIMED_STEPS = 8
_TIMED_ROW = 2


def run_convergence(config: ConvergenceConfig, output_dir: Path, console: Console) -> None:
    """Make the runs that the results file in `output_dir` lacks.

    Raises RankFailure if a rank fails, and ValueError where a learning rate is missing or this build cannot run an arm.
    No process outlives the call; finished runs are in the file.
    """
    files = config.files or tuple(default_files())
    text = text_digest(files)
    for setting in config.settings():
        _check_arms(config.arms(), setting)
    with ResultsFile(output_dir / "convergence.jsonl") as results:
        lrs = [config.lr or best_lr(results, setting) for setting in config.settings()]
        for setting, lr in zip(config.settings(), lrs, strict=True):
            with open_network(setting.nodes) as network:
                console.print(f"{setting.nodes} nodes: {network.description}", highlight=False)
                stage = _Stage(network, files, output_dir / "logs", results, console)
                for seed in config.seeds:
                    for arm in config.arms():
                        stage.train(make_run(STAGE, setting, arm, lr, seed, text))
                if config.links and not network.has_links:
                    console.print("[yellow]No link to limit here: steps are not timed.")
                    continue
                by_ranks = groupby(sorted(config.arms(), key=_ranks_per_node), key=_ranks_per_node)
                groups = [list(group) for _, group in by_ranks]
                for link in config.links:
                    for arms in groups:
                        stage.time([make_run(TIMED_STAGE, setting, arm, lr, 1, text, link) for arm in arms])


def _check_arms(arms: Sequence[CodecArm], setting: Setting) -> None:
    for arm in arms:
        try:
            isthmus.Options(**arm.options_for(setting.steps))
        except isthmus.OptionError as error:
            raise ValueError(f"finalist {arm.name} cannot run: {error}") from error


def best_lr(results: Results, setting: Setting) -> float:
    """The learning rate at which the baseline of this setting was best, on however many nodes, in whatever layout.

    Raises ValueError if no run of it is in the results.
    """
    losses: dict[float, list[float]] = {}
    for record in results.records:
        run, loss = Run.from_json(record["run"]), record["result"].get("val_loss")
        same = replace(run.setting, nodes=setting.nodes, layout=setting.layout) == setting
        if run.arm == BASELINE and same and loss is not None:
            losses.setdefault(run.lr, []).append(loss)
    if not losses:
        raise ValueError(f"no learning rate: give --lr, since no result is of {BASELINE} with {setting.optimizer}")
    return min(losses, key=lambda lr: fmean(losses[lr]))


def _ranks_per_node(arm: CodecArm) -> int:
    return arm.ranks_per_node


@dataclass(frozen=True)
class _Stage:
    """Where runs take place, and where their results go."""

    network: Network
    files: Sequence[Path]
    logs: Path
    results: ResultsFile
    console: Console

    def train(self, run: Run) -> None:
        """Train one arm in a world of its own, if its result is missing."""
        if self.results.result(run) is not None:
            return
        start_s = time.monotonic()
        with self._world([run]) as world, self.console.status(str(run)) as status:
            answers = _request(world, {"do": "train", "arm": run.arm}, lambda event: status.update(_shown(run, event)))
        result = merged(run, answers) | {"seconds": round(time.monotonic() - start_s, 2)}
        self.results.append(run, result)
        loss = "diverged" if result["val_loss"] is None else f"{result['val_loss']:.4f}"
        self.console.print(f"{run}: {loss} ({result['seconds']:.0f} s)", highlight=False)

    def time(self, runs: Sequence[Run]) -> None:
        """Time steps of all arms in turn in one world, over their shaped link, if a result is missing."""
        missing = [run for run in runs if self.results.result(run) is None]
        if not missing:
            return
        seconds: dict[str, list[float]] = {run.arm: [] for run in runs}
        link_bytes: dict[str, list[int]] = {run.arm: [] for run in runs}
        with self._world([_without_start(run) for run in runs]) as world:
            self.network.shape(runs[0].link)
            for row in range(_TIMED_STEPS // _TIMED_ROW):
                turn = row % len(runs)
                for run in (*runs[turn:], *runs[:turn]):
                    answers = _request(world, {"do": "steps", "arm": run.arm, "num_steps": 1 + _TIMED_ROW})
                    seconds[run.arm] += _over_ranks(answers, "seconds", max)[1:]
                    link_bytes[run.arm] += _over_ranks(answers, "link_bytes", sum)[1:]
            self.network.shape(None)
        for run in missing:
            result = {
                "median_step_s": median(seconds[run.arm]),
                "step_s": seconds[run.arm],
                "link_bytes_per_step": fmean(link_bytes[run.arm]),
            }
            self.results.append(run, result)
            self.console.print(f"{run.arm} at {run.link}: {result['median_step_s']:.3f} s a step", highlight=False)

    def _world(self, runs: Sequence[Run]) -> RankWorld:
        world = RankWorld(self.network, runs[0].ranks_per_node, _MODULE, self.logs)
        command = {
            "do": "setup",
            "runs": [run.as_json() for run in runs],
            "files": [str(path) for path in self.files],
            "count_link": self.network.has_links,
            "timeout_s": _TIMEOUT_S,
        }
        try:
            world.request(command, _SETUP_TIMEOUT_S)
        except BaseException:
            world.close()
            raise
        return world


def _without_start(run: Run) -> Run:
    """The run without its dense start, which is not timed."""
    return replace(run, options=tuple((dict(run.options) | {"dense_steps": 0}).items()))


def _shown(run: Run, event: dict[str, Any]) -> str:
    return f"{run}: step {event['step']}, loss {event['loss']:.3f}"


def _request(
    world: RankWorld, command: dict[str, Any], on_event: Callable[[dict[str, Any]], None] = lambda event: None
) -> list[dict[str, Any]]:
    return world.request(command, _TIMEOUT_S + SILENCE_MARGIN_S, on_event)


def _over_ranks(answers: Sequence[dict[str, Any]], name: str, combine: Callable[[Any], Any]) -> list[Any]:
    return [combine(values) for values in zip(*(answer[name] for answer in answers), strict=True)]


def merged(run: Run, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result from those of all ranks."""
    losses = _over_ranks(answers, "losses", fmean)
    validated = [
        {
            "step": points[0]["step"],
            "loss": sum(point["total"] for point in points) / sum(point["count"] for point in points),
            "sent_bytes": sum(point["sent_bytes"] for point in points),
        }
        for points in zip(*(answer["validated"] for answer in answers), strict=True)
    ]
    diverged = len(losses) < run.setting.steps
    return {
        "val_loss": None if diverged else validated[-1]["loss"],
        "validated": validated,
        "train_loss": averaged(losses) if losses else [],
        "steps_done": len(losses),
        "sent_bytes": sum(answer["sent_bytes"] for answer in answers),
        "num_parameters": answers[0]["num_parameters"],
        "clipped_share": answers[0]["num_clipped"] / max(1, len(losses)),
        "relative_error": relative_error(answers),
        "compressed_calls": answers[0]["compressed_calls"],
        "exact_calls": answers[0]["exact_calls"],
        "native_build": native_build(),
    }
