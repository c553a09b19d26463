"""One rank of the soak: makes the groups, then runs and verifies steps by command."""

from isthmus.benchmarks.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from isthmus.benchmarks.common.isthmus_group import IsthmusGroup, new_group
from isthmus.benchmarks.soak.calls import MIN_ELEMENTS, OPTIONS, Call, Issued, Pair, WrongResult, calls_of_step


class Worker:
    """The commands that a rank answers."""

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and make all groups."""
        torch.set_num_threads(1)
        timeout = timedelta(seconds=command["timeout_s"])
        dist.init_process_group("gloo", timeout=timeout)
        self._pairs = {name: self._make_pair(name, ranks, timeout) for name, ranks in _ranks_of_groups().items()}
        self._smallest_group = min(pair.size for pair in self._pairs.values() if pair)
        return {"smallest_group": self._smallest_group}

    def _make_pair(self, name: str, ranks_of_groups: list[list[int]], timeout: timedelta) -> Pair | None:
        options = {"min_elements": str(MIN_ELEMENTS), "log": "error", **OPTIONS[name]}
        isthmus_group = IsthmusGroup(options, timeout, ranks_of_groups).group
        gloo_group = new_group("gloo", timeout, ranks_of_groups)
        return Pair(isthmus_group, gloo_group) if isthmus_group is not None else None

    def run(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Run steps first ... last - 1. Raises WrongResult at the first that is wrong."""
        counted: Counter[str] = Counter()
        for step in range(command["first"], command["last"]):
            calls = calls_of_step(command["seed"], step, command["smallest_group"])
            try:
                self._run_step(calls, command["seed"] + step)
            except WrongResult as error:
                raise WrongResult(f"step {step}: {error}") from None
            counted.update(call.kind for call in calls)
        return {"counted": counted, "process": _process_figures()}

    def _run_step(self, calls: list[Call], seed: int) -> None:
        """All calls are issued before any is waited for, in groups that share ranks."""
        issued = [Issued(call, pair, seed) for call in calls if (pair := self._pairs[call.group]) is not None]
        for call in issued:
            call.finish()


def _ranks_of_groups() -> dict[str, list[list[int]]]:
    """The groups of each name; those of one name share no rank."""
    world_size = dist.get_world_size()
    everyone = list(range(world_size))
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    return {
        "default": [everyone],
        "plain": [everyone],
        "rails": [everyone[local_index::per_node] for local_index in range(per_node)],
        "nodes": [everyone[first : first + per_node] for first in range(0, world_size, per_node)],
        "all but the last": [everyone[:-1]],
        "all but the first": [everyone[1:]],
    }


def _process_figures() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    worker = Worker()
    serve({"setup": worker.setup, "run": worker.run})
