"""The second stage of `isthmus bench convergence`: a few arms on the real backend, as processes on simulated nodes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

from isthmus.bench.convergence_arms import ARMS, BASELINE, CodecArm
from isthmus.bench.convergence_config import Run, Setting, make_run, text_digest
from isthmus.bench.convergence_results import Results, ResultsFile
from isthmus.bench.convergence_training import averaged, native_build, relative_error
from isthmus.simulate import Network, RankWorld, open_network, parse_link_rate

STAGE = "real"
TIMED_STAGE = "timed"
MAX_FINALISTS = 6
_MODULE = "isthmus.bench.convergence_rank"
_TIMEOUT_S = 300
_SETUP_TIMEOUT_S = 180
#: Above the process groups' own timeout, so that a rank that waits in vain can say so first.
_SILENCE_MARGIN_S = 30
#: Timed steps of an arm at a link, and how many of them in a row; one before each row is not timed: the link's bucket
#: is as the arm before left it.
_TIMED_STEPS = 8
_TIMED_ROW = 2


@dataclass(frozen=True)
class Finals:
    """What is trained: the baseline and `arms`, with each of `seeds`, on each number of `nodes`; and timed."""

    setting: Setting
    arms: tuple[CodecArm, ...]
    seeds: tuple[int, ...]
    nodes: tuple[int, ...]
    links: tuple[str, ...]
    files: tuple[Path, ...]
    lr: float

    def __post_init__(self) -> None:
        num_finalists = sum(arm.name != BASELINE for arm in self.arms)
        if not 1 <= num_finalists <= MAX_FINALISTS:
            raise ValueError(f"{num_finalists} finalists: expected 1 to {MAX_FINALISTS}")
        for name in ("seeds", "nodes", "files"):
            if not getattr(self, name):
                raise ValueError(f"no {name}: expected some")
        for link in self.links:
            parse_link_rate(link)
        for nodes in self.nodes:
            setting = replace(self.setting, nodes=nodes)
            for arm in self.arms:
                setting.check_ranks(arm.ranks_per_node)


def best_lr(results: Results, setting: Setting) -> float:
    """The learning rate at which the screened baseline of this setting was best, on however many nodes,
    in whatever layout.

    Raises ValueError if it has not been screened.
    """
    losses: dict[float, list[float]] = {}
    for record in results.records:
        run, loss = Run.from_json(record["run"]), record["result"].get("val_loss")
        same = replace(run.setting, nodes=setting.nodes, layout=setting.layout) == setting
        if run.stage == "screen" and run.arm == BASELINE and same and loss is not None:
            losses.setdefault(run.lr, []).append(loss)
    if not losses:
        raise ValueError("no learning rate: screen this setting first, or give --lr")
    return min(losses, key=lambda lr: fmean(losses[lr]))


def run_finals(finals: Finals, results: ResultsFile, logs: Path, console: Console) -> None:
    """Do what is not in `results` yet. Raises RankFailure if a rank fails; no process outlives the call."""
    text = text_digest(finals.files)
    for nodes in finals.nodes:
        setting = replace(finals.setting, nodes=nodes)
        with open_network(nodes) as network:
            console.print(f"{nodes} nodes: {network.description}", highlight=False)
            stage = _Stage(network, finals.files, logs, results, console)
            for seed in finals.seeds:
                for arm in finals.arms:
                    stage.train(make_run(STAGE, setting, arm, finals.lr, seed, text))
            if finals.links and not network.has_links:
                console.print("[yellow]No link to limit here: steps are not timed.")
                continue
            by_ranks = groupby(sorted(finals.arms, key=_ranks_per_node), key=_ranks_per_node)
            groups = [list(group) for _, group in by_ranks]
            for link in finals.links:
                for arms in groups:
                    stage.time([make_run(TIMED_STAGE, setting, arm, finals.lr, 1, text, link) for arm in arms])


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
    """The run as it is once a dense start and a ramp are over, which are not what is timed."""
    return replace(run, options=tuple((dict(run.options) | {"dense_steps": 0, "ramp_steps": 0}).items()))


def _shown(run: Run, event: dict[str, Any]) -> str:
    return f"{run}: step {event['step']}, loss {event['loss']:.3f}"


def _request(
    world: RankWorld, command: dict[str, Any], on_event: Callable[[dict[str, Any]], None] = lambda event: None
) -> list[dict[str, Any]]:
    return world.request(command, _TIMEOUT_S + _SILENCE_MARGIN_S, on_event)


def _over_ranks(answers: Sequence[dict[str, Any]], name: str, combine: Callable[[Any], Any]) -> list[Any]:
    return [combine(values) for values in zip(*(answer[name] for answer in answers), strict=True)]


def merged(run: Run, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result from those of all ranks, in the form that a screening run has."""
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


def finalists_named(names: Sequence[str]) -> tuple[CodecArm, ...]:
    """The baseline and the arms of these names, in their order. Raises ValueError naming what is unknown or twice."""
    for name in names:
        if name not in ARMS:
            raise ValueError(f"finalist '{name}': expected some of {', '.join(ARMS)}")
        if names.count(name) > 1:
            raise ValueError(f"finalist '{name}' is named twice")
        if ARMS[name].noise:
            raise ValueError(f"finalist '{name}' is no codec: it can be screened only")
    return (ARMS[BASELINE], *(ARMS[name] for name in names if name != BASELINE))
