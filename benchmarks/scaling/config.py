"""Arguments of `isthmus bench scaling`."""

from dataclasses import asdict, dataclass
from typing import Any

from isthmus.benchmarks.common.options import option
from isthmus.benchmarks.training.config import TrainingConfig


@dataclass(frozen=True)
class Layout:
    """Number of nodes, and of ranks on each."""

    nodes: int
    ranks_per_node: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read "4x2". Raises ValueError naming the text."""
        nodes, cross, ranks_per_node = text.strip().partition("x")
        if not (cross and nodes.isdecimal() and ranks_per_node.isdecimal()):
            raise ValueError(f"layout '{text}': expected NODESxRANKS, as in 4x2")
        return cls(int(nodes), int(ranks_per_node))


@dataclass(frozen=True)
class ScalingConfig:
    """Arguments of `isthmus bench scaling`."""

    arms: tuple[str, ...] = option(("fsdp", "hsdp", "quant", "full"), "Which arms.")
    layouts: tuple[Layout, ...] = option(
        (Layout(2, 1), Layout(4, 1), Layout(8, 1)), "Nodes x ranks on each, one run each.", parse=Layout.parse
    )
    link: str = option("50mbit", "Rate of every node's link.")
    timed_steps: int = option(4, "Timed steps of each arm.")

    def __post_init__(self) -> None:
        if not self.layouts:
            raise ValueError("no layouts: expected some, as in 2x1,4x1")
        for layout in self.layouts:
            if self.layouts.count(layout) > 1:
                raise ValueError(f"layout {layout} is named twice")
            self.at(layout)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"layouts": [str(layout) for layout in self.layouts]}

    def at(self, layout: Layout) -> TrainingConfig:
        """The training at `layout`."""
        return TrainingConfig(
            arms=self.arms,
            nodes=layout.nodes,
            ranks_per_node=layout.ranks_per_node,
            links=(self.link,),
            steps=2,
            timed_steps=self.timed_steps,
            audited_steps=1,
            sequences=1,
            validation_sequences=1,
        )
