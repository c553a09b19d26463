"""What the arguments of benchmarks that have --here share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

from isthmus.benchmarks.common.options import check_ranges, option, options_of
from isthmus.benchmarks.simulate.network import SIMULATED_RANGES
from isthmus.plan.ranges import check_choice

#: Nodes, and ranks on each, that a launcher may start.
_RANGES = {"nodes": (2, 65_536), "ranks_per_node": (1, 4096)}


@dataclass(frozen=True)
class HereConfig(ABC):
    """Which ranks a benchmark runs on: a launcher's, or those of simulated nodes, or of islands."""

    #: Whether nodes are this machine's islands of GPUs.
    islands: ClassVar[bool] = False

    here: bool = option(
        False, "On the ranks that a launcher started, over the links that are there: nothing is simulated."
    )
    device: str = option(
        "auto", "With --here: cpu or cuda.", only="here", show_default="cuda where ranks have GPUs, else cpu"
    )
    nodes: int = option(2, "Simulated nodes, 2 to 8.", only="simulated")
    ranks_per_node: int = option(2, "Processes on each node.", only="simulated")
    timeout_s: int = option(300, "Seconds that a collective may take.", name="timeout")
    #: The fields that a user has set, though perhaps to what they are by default.
    given: tuple[str, ...] = ()

    #: Whether ranks of simulated nodes may have GPUs.
    simulates_gpus: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ranges(self, (SIMULATED_RANGES if self.is_simulated else _RANGES) | {"timeout_s": (5, 86_400)})
        check_choice("device", self.device, ("auto", "cpu", "cuda"))

    @property
    def is_simulated(self) -> bool:
        """Whether nodes are simulated, and the links between them."""
        return not (self.here or self.islands)

    @abstractmethod
    def on_device(self) -> Self:
        """The same for the device that was found. ValueError: what was asked for cannot be had there."""

    def with_gpu_defaults(self) -> Self:
        """The same with the defaults for GPUs."""
        own = {name: each.on_gpu for name, each in options_of(type(self)).items() if each.on_gpu is not None}
        return replace(self, **{name: value for name, value in own.items() if self.is_default(name)})

    def is_default(self, name: str) -> bool:
        """Whether a field is as it is where nobody sets it."""
        (default,) = (each.default for each in fields(self) if each.name == name)
        return name not in self.given and getattr(self, name) == default
