"""One rank of the soak: makes the groups, then runs and verifies steps by command."""

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import isthmus
from isthmus.benchmarks.common.isthmus_group import new_group
from isthmus.benchmarks.common.stage import join_simulated
from isthmus.benchmarks.simulate.serve import Emit
from isthmus.benchmarks.soak.calls import MIN_ELEMENTS, OPTIONS, Call, Issued, Pair, WrongResult, calls_of_step


class Worker:
    """What a rank does on request."""

    def setup(self, emit: Emit, timeout_s: float) -> int:
        """Join the world and make all groups; returns the size of this rank's smallest one."""
        join_simulated("cpu", timeout_s, counts_links=False)
        timeout = timedelta(seconds=timeout_s)
        self._pairs: dict[str, Pair] = {}
        for name, ranks in _ranks_of_groups().items():
            options = isthmus.Options(min_elements=MIN_ELEMENTS, log="error", **OPTIONS[name])  # type: ignore[arg-type]
            group, gloo_group = new_group("isthmus", timeout, ranks, options), new_group("gloo", timeout, ranks)
            if group is not None:
                self._pairs[name] = Pair(group, gloo_group)
        return min(pair.size for pair in self._pairs.values())

    def run(self, emit: Emit, first: int, last: int, seed: int, smallest_group: int) -> dict[str, Any]:
        """Run steps first ... last - 1. Raises WrongResult at the first that is wrong."""
        counted: Counter[str] = Counter()
        for step in range(first, last):
            calls = calls_of_step(seed, step, smallest_group)
            try:
                self._run_step(calls, seed + step)
            except WrongResult as error:
                raise WrongResult(f"step {step}: {error}") from None
            counted.update(call.kind for call in calls)
        return {"counted": counted, "process": _process_figures()}

    def _run_step(self, calls: list[Call], seed: int) -> None:
        """All calls are issued before any is waited for, in groups that share ranks."""
        issued = [Issued(call, self._pairs[call.group], seed) for call in calls if call.group in self._pairs]
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
