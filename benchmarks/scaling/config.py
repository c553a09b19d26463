"""Arguments of `isthmus bench scaling`."""

from dataclasses import dataclass, replace
from typing import Any

from isthmus.benchmarks.common.options import Option, option, part
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
    """Arguments of `isthmus bench scaling`. training: run at each layout; its own layout does not matter."""

    training: TrainingConfig = part(
        TrainingConfig(
            arms=("fsdp", "hsdp", "none", "flat-tagc", "tagc", "hsdp-none", "hsdp-tagc"),
            steps=2,
            timed_steps=4,
            audited_steps=1,
            links=("50mbit",),
            sequences=1,
            validation_sequences=1,
        ),
        arms=Option("Which arms."),
        links=Option("Rate of every node's link.", name="link"),
        timed_steps=Option("Timed steps of each arm."),
        width=None,
        num_layers=None,
        sequences=None,
        timeout_s=None,
    )
    layouts: tuple[Layout, ...] = option(
        tuple(Layout(nodes, ranks) for ranks in (1, 2) for nodes in (2, 4, 8)),
        "Nodes x ranks on each, one run each.",
        parse=Layout.parse,
    )

    def __post_init__(self) -> None:
        if not self.layouts:
            raise ValueError("no layouts: expected some, as in 2x1,4x1")
        for layout in self.layouts:
            if self.layouts.count(layout) > 1:
                raise ValueError(f"layout {layout} is named twice")
            self.at(layout)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        arguments = self.training.as_json() | {"layouts": [str(layout) for layout in self.layouts]}
        return {name: value for name, value in arguments.items() if name not in ("nodes", "ranks_per_node")}

    def at(self, layout: Layout) -> TrainingConfig:
        """The training at `layout`."""
        return replace(self.training, nodes=layout.nodes, ranks_per_node=layout.ranks_per_node)
