"""Arguments of `isthmus bench soak`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import option
from isthmus.benchmarks.simulate import MAX_NODES
from isthmus.benchmarks.soak.plan import MOST_RANKS


@dataclass(frozen=True)
class SoakConfig:
    """Arguments of `isthmus bench soak`. Raises ValueError naming field, value and range."""

    steps: int = option(10_000, "Steps of one to four collectives.")
    nodes: int = option(2, "Simulated nodes, 2 to 8.")
    ranks_per_node: int = option(2, "Processes on each node, 2 or more.")
    seed: int = option(1, "Of what happens in which step.")
    timeout_s: int = option(120, "Seconds that a collective may take.", name="timeout")

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= 10_000_000:
            raise ValueError(f"steps {self.steps}: expected 1 to 10000000")
        if not 2 <= self.nodes <= MAX_NODES:
            raise ValueError(f"nodes {self.nodes}: expected 2 to {MAX_NODES}")
        if self.ranks_per_node < 2 or self.nodes * self.ranks_per_node > MOST_RANKS:
            raise ValueError(
                f"ranks per node {self.ranks_per_node}: expected 2 or more, and at most {MOST_RANKS} ranks in all"
            )
        if self.timeout_s < 1:
            raise ValueError(f"timeout {self.timeout_s} s: expected 1 or more")
