"""Arguments of `isthmus bench overhead`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.simulate import MAX_NODES
from isthmus.benchmarks.training.config import TrainingConfig


@dataclass(frozen=True)
class OverheadConfig:
    """Arguments of `isthmus bench overhead`. Raises ValueError naming field, value and range."""

    nodes: int = option(2, "Simulated nodes, 2 to 8.")
    ranks_per_node: int = option(2, "Processes on each node, for the training steps.")
    rounds: int = option(60, "Batches of each call on each backend.")
    batch_calls: int = option(10, "Calls in a batch.")
    steps: int = option(16, "Timed training steps of each arm; 0: none.")
    width: int = option(TrainingConfig.width, "Width of the model, a multiple of 64.")
    num_layers: int = option(TrainingConfig.num_layers, "Transformer blocks.", name="layers")
    timeout_s: int = option(60, "Seconds that a collective may take.", name="timeout")

    def __post_init__(self) -> None:
        ranges = {
            "nodes": (2, MAX_NODES),
            "ranks_per_node": (1, 16),
            "rounds": (2, 100_000),
            "batch_calls": (1, 10_000),
            "timeout_s": (5, 86_400),
        }
        check_ranges(self, ranges)
        if self.steps != 0 and not 2 <= self.steps <= 10_000:
            raise ValueError(f"steps {self.steps}: expected 0, or 2 to 10000")
        _ = self.training

    @property
    def training(self) -> TrainingConfig:
        """The training of both arms."""
        return TrainingConfig(
            arms=("none",),
            nodes=self.nodes,
            ranks_per_node=self.ranks_per_node,
            width=self.width,
            num_layers=self.num_layers,
            timeout_s=max(10, self.timeout_s),
        )
