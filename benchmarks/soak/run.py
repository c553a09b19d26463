"""The soak: thousands of steps of mixed collectives in several groups at once, every result verified, memory flat."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.simulate.network import MAX_NODES, open_network
from isthmus.benchmarks.simulate.ranks import RankWorld

WORKER_MODULE = "isthmus.benchmarks.soak.worker"
#: The share of the steps in which allocators, caches and lazily made connections settle, and units get residuals.
WARM_UP_SHARE = 0.25
#: What a rank may have more of than after warming up, by name: between the medians of the first and last quarter of
#: samples. In short runs memory has the residuals of units that have not been called before. A group asks the store
#: about faults when an operation takes long, over a connection that it then keeps; so a slow moment late in the run may
#: add one thread and one descriptor a group.
MOST_GROWTH = {"memory_bytes": 32 << 20, "threads": 6, "descriptors": 6}
_SETUP_TIMEOUT_S = 180
_NUM_SAMPLES = 40
_SLOWEST_STEP_S = 30


#: Groups have at most so many ranks, and tensors sizes that all numbers up to it divide.
MOST_RANKS = 10


@dataclass(frozen=True)
class SoakConfig:
    """Arguments of `isthmus bench soak`. Raises ValueError naming field, value and range."""

    steps: int = option(10_000, "Steps of one to four collectives.")
    nodes: int = option(2, "Simulated nodes, 2 to 8.")
    ranks_per_node: int = option(2, "Processes on each node, 2 or more.")
    seed: int = option(1, "Of what happens in which step.")
    timeout_s: int = option(120, "Seconds that a collective may take.", name="timeout")

    def __post_init__(self) -> None:
        ranges = {"steps": (1, 10_000_000), "nodes": (2, MAX_NODES), "timeout_s": (1, 86_400)}
        check_ranges(self, ranges | {"ranks_per_node": (2, MOST_RANKS // max(1, self.nodes))})


@dataclass(frozen=True)
class SoakReport:
    """The calls made and the resources used; `faults` names those out of bounds."""

    counted: Counter[str]  # calls by kind
    seconds: float
    grown: dict[str, list[int]]  # by resource, and rank
    memory_bytes: list[int]  # of each rank at the end

    def faults(self) -> list[str]:
        """Resources that grew by more than they may, by rank."""
        return [
            f"rank {rank} has {grown} more {name.replace('_', ' ')} than after warming up; at most {most} are allowed"
            for name, most in MOST_GROWTH.items()
            for rank, grown in enumerate(self.grown[name])
            if grown > most
        ]


def run_soak(config: SoakConfig, log_dir: Path, console: Console) -> SoakReport:
    """Run all steps. Raises RankFailure, naming the first wrong step, if a result is wrong."""
    samples: list[list[dict[str, int]]] = []
    counted: Counter[str] = Counter()
    with (
        open_network(config.nodes) as network,
        RankWorld(network, config.ranks_per_node, WORKER_MODULE, log_dir) as world,
    ):
        console.print(f"{config.nodes} nodes x {config.ranks_per_node} ranks on {network.description}")
        smallest_group = min(world.request("setup", _SETUP_TIMEOUT_S, timeout_s=config.timeout_s))
        begin_s = time.monotonic()
        for first, last in _batches(config.steps):
            steps = {"first": first, "last": last, "seed": config.seed, "smallest_group": smallest_group}
            answers = world.request("run", config.timeout_s + (last - first) * _SLOWEST_STEP_S, **steps)
            counted.update(answers[0]["counted"])
            samples.append([answer["process"] for answer in answers])
            console.print(f"{last} steps, {time.monotonic() - begin_s:.0f} s", highlight=False)
    return _report(counted, time.monotonic() - begin_s, samples)


def _batches(steps: int) -> list[tuple[int, int]]:
    length = max(1, -(-steps // _NUM_SAMPLES))
    return [(first, min(first + length, steps)) for first in range(0, steps, length)]


def _report(counted: Counter[str], seconds: float, samples: list[list[dict[str, int]]]) -> SoakReport:
    """samples[i][rank]: taken after the i-th batch."""
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    quarter = max(1, len(warm) // 4)

    def growth(name: str, rank: int) -> int:
        values = [sample[rank][name] for sample in warm]
        return int(median(values[-quarter:]) - median(values[:quarter]))

    return SoakReport(
        counted=counted,
        seconds=seconds,
        grown={name: [growth(name, rank) for rank in range(len(warm[0]))] for name in MOST_GROWTH},
        memory_bytes=[figures["memory_bytes"] for figures in warm[-1]],
    )


def print_soak(config: SoakConfig, report: SoakReport, console: Console) -> None:
    """Print the calls made and the resources used."""
    total = sum(report.counted.values())
    kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.counted.items()))
    lines: list[tuple[str, Any]] = [
        ("steps", f"{config.steps}, seed {config.seed}, {report.seconds:.0f} s"),
        ("collectives", f"{total}, all verified: {kinds}"),
        ("memory at the end", ", ".join(f"{bytes_ / 2**20:.0f} MiB" for bytes_ in report.memory_bytes)),
        ("grown since warm-up", ", ".join(f"{bytes_ / 2**20:+.1f} MiB" for bytes_ in report.grown["memory_bytes"])),
        ("more threads", ", ".join(map(str, report.grown["threads"]))),
        ("more descriptors", ", ".join(map(str, report.grown["descriptors"]))),
    ]
    for name, value in lines:
        console.print(f"{name:20} {value}", highlight=False, soft_wrap=True)
