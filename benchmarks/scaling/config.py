"""Arguments of `python -m isthmus.benchmarks.scaling`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import option
from isthmus.benchmarks.training.config import TrainingConfig


@dataclass(frozen=True)
class ScalingConfig:
    """Arguments of `python -m isthmus.benchmarks.scaling`."""

    arms: tuple[str, ...] = option(("fsdp", "hsdp", "quant", "full"), "Which arms.")
    layouts: tuple[str, ...] = option(("2x1", "4x1", "8x1"), "Nodes x ranks on each, one run each.")
    link: str = option("50mbit", "Rate of every node's link.")
    timed_steps: int = option(4, "Timed steps of each arm.")

    def __post_init__(self) -> None:
        if not self.layouts:
            raise ValueError("no layouts: expected some, as in 2x1,4x1")
        for layout in self.layouts:
            if self.layouts.count(layout) > 1:
                raise ValueError(f"layout {layout} is named twice")
            self.at(layout)

    def at(self, layout: str) -> TrainingConfig:
        """The training at "4x2". Raises ValueError naming a layout that is none."""
        nodes, cross, ranks_per_node = layout.partition("x")
        if not (cross and nodes.isdecimal() and ranks_per_node.isdecimal()):
            raise ValueError(f"layout '{layout}': expected NODESxRANKS, as in 4x2")
        return TrainingConfig(
            arms=self.arms,
            device="cpu",
            nodes=int(nodes),
            ranks_per_node=int(ranks_per_node),
            links=(self.link,),
            steps=2,
            timed_steps=self.timed_steps,
            audited_steps=1,
            sequences=1,
            validation_sequences=1,
        )
