"""`python -m isthmus.benchmarks.convergence`: the cost in validation loss of reducing gradients in less than 32 bits.

A few arms are trained on the real backend, as processes on simulated nodes. Results go to one file, and the tables are
made from that file alone.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from isthmus.benchmarks.common.data import default_files
from isthmus.benchmarks.common.report import print_machine
from isthmus.benchmarks.convergence import worker
from isthmus.benchmarks.convergence.config import ConvergenceConfig
from isthmus.benchmarks.convergence.results import ResultsFile, Run, make_run, text_digest
from isthmus.benchmarks.simulate.network import Network, open_network
from isthmus.benchmarks.simulate.ranks import SILENCE_MARGIN_S, RankWorld

_TIMEOUT_S = 300
_SETUP_TIMEOUT_S = 180


def run_convergence(config: ConvergenceConfig, output_dir: Path, console: Console) -> None:
    """Make the runs that the results file in `output_dir` lacks.

    Raises RankFailure if a rank fails. No process outlives the call; finished runs are in the file.
    """
    files = [Path(name) for name in config.text] or default_files()
    text = text_digest(files)
    print_machine(console)
    file = ResultsFile(output_dir / "convergence.jsonl")
    for setting in config.settings():
        runs = [
            make_run(setting, arm, config.lr, seed, text, config.muon_lr if optimizer == "muon" else 0)
            for seed in config.seeds
            for optimizer in config.optimizers
            for arm in config.arms()
        ]
        with open_network(setting.nodes) as network:
            if setting.link:
                network.shape(setting.link)
            console.print(f"{setting.nodes} nodes: {network.description}", highlight=False)
            for run in runs:
                if run.key not in file.results:
                    result = _train(run, network, files, output_dir / "logs", console)
                    file.append(run, result)
                    loss = "diverged" if result["val_loss"] is None else f"{result['val_loss']:.4f}"
                    console.print(f"{run}: {loss} ({result['seconds']:.0f} s)", highlight=False)


def _train(run: Run, network: Network, files: Sequence[Path], logs: Path, console: Console) -> dict[str, Any]:
    """Train in a world of its own."""
    start_s = time.monotonic()
    with RankWorld(network, run.ranks_per_node, worker.__name__, logs) as world, console.status(str(run)) as status:

        def show(event: dict[str, Any]) -> None:
            status.update(f"{run}: step {event['step']}, loss {event['loss']:.3f}")

        world.request("setup", _SETUP_TIMEOUT_S, run=run, files=files, timeout_s=_TIMEOUT_S)
        answers = world.request("train", _TIMEOUT_S + SILENCE_MARGIN_S, show)
    return merged(run, answers) | {"seconds": round(time.monotonic() - start_s, 2)}


def merged(run: Run, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result from those of all ranks. val_loss: None where the gradient became infinite, or no number."""
    steps_done = answers[0]["steps_done"]
    diverged = steps_done < run.setting.steps
    total, count = (sum(answer[name] for answer in answers) for name in ("total_loss", "count"))
    return {
        "val_loss": None if diverged else total / count,
        "steps_done": steps_done,
        "sent_bytes": sum(answer["sent_bytes"] for answer in answers),
        "num_parameters": answers[0]["num_parameters"],
        "step_s": round(max(answer["train_s"] for answer in answers) / max(1, steps_done), 4),
        "relative_error": _relative_error([unit for answer in answers for unit in answer["units"]]),
    }


def _relative_error(units: Sequence[dict[str, Any]]) -> float | None:
    """Mean relative squared error of the codec, where it was measured."""
    measured = [unit for unit in units if unit["relative_squared_error"] is not None]
    if not measured:
        return None
    mean = fmean(
        [unit["relative_squared_error"] for unit in measured], weights=[unit["coded_elements"] for unit in measured]
    )
    return mean if math.isfinite(mean) else None
