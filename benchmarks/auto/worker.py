"""One rank of `isthmus bench auto`: all arms' models side by side, stepped by command of the launcher."""

from isthmus.benchmarks.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

import isthmus
from isthmus.benchmarks.auto.arms import AUTO_ARMS
from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.simulate.stage import join_simulated
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.meshes import ArmGroups, make_groups
from isthmus.benchmarks.training.trainer import Trainer


class Worker:
    """The commands that a rank answers."""

    def __init__(self) -> None:
        self._groups: dict[str, ArmGroups] = {}
        self._trainers: dict[str, Trainer] = {}

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and build every arm."""
        config = TrainingConfig.from_json(command["config"])
        place = join_simulated({"timeout_s": config.timeout_s, "count_link": False})
        text = Text([Path(name) for name in config.text] or default_files(), config.context, config.seed)
        for name in command["arms"]:
            self._groups[name] = make_groups(AUTO_ARMS[name], config, place)
            self._trainers[name] = Trainer(self._groups[name].mesh, config, text, command["num_steps"])
        return {"num_parameters": self._trainers[command["arms"][0]].num_parameters}

    def steps(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Train one arm for some steps; the seconds of each, from a barrier on."""
        seconds = []
        for _ in range(command["num_steps"]):
            dist.barrier()
            start_s = time.perf_counter()
            self._trainers[command["arm"]].step()
            seconds.append(time.perf_counter() - start_s)
        return {"seconds": seconds}

    def explain(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """What an arm's groups say of their units."""
        return {"lines": [isthmus.explain(group.group) for group in self._groups[command["arm"]].isthmus]}


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = Worker()
    serve({"setup": worker.setup, "steps": worker.steps, "explain": worker.explain})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
