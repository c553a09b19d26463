"""Arguments of `isthmus bench soak`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.simulate import MAX_NODES

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
