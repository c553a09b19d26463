"""What a training benchmark is asked to do: arguments with their ranges, passed to the ranks as they are."""

from dataclasses import asdict, dataclass
from typing import Any

from isthmus.bench.arms import DEFAULT_ARMS, arms_named
from isthmus.simulate import MAX_NODES, parse_link_rate

HEAD_WIDTH = 64
DTYPES = ("bf16", "fp32", "fp16")

_RANGES = {
    "nodes": (2, MAX_NODES),
    "ranks_per_node": (1, 16),
    "steps": (2, 100_000),
    "timed_steps": (1, 100_000),
    "audited_steps": (1, 100),
    "sequences": (1, 4096),
    "validation_sequences": (1, 65_536),
    "timeout_s": (10, 86_400),
}


@dataclass(frozen=True)
class ModelShape:
    """Size of the model: width in whole heads of 64. Raises ValueError naming field, value and range."""

    width: int = 256
    num_layers: int = 4
    context: int = 128

    def __post_init__(self) -> None:
        _check_ranges(self, {"width": (HEAD_WIDTH, 16_384), "num_layers": (1, 128), "context": (1, 65_536)})
        if self.width % HEAD_WIDTH:
            raise ValueError(f"width {self.width}: expected a multiple of {HEAD_WIDTH}, the width of a head")


@dataclass(frozen=True)
class TrainingConfig:
    """Arguments of `isthmus bench training`. Raises ValueError naming field, value and range."""

    arms: tuple[str, ...] = DEFAULT_ARMS
    nodes: int = 2
    ranks_per_node: int = 2
    #: Steps of each arm without a limit on the link, for the loss.
    steps: int = 100
    #: Steps of each arm at each of `links` that are timed.
    timed_steps: int = 8
    links: tuple[str, ...] = ("200mbit", "50mbit")
    #: Steps of each arm in which every collective's bytes are counted apart.
    audited_steps: int = 2
    dtype: str = "bf16"
    width: int = ModelShape.width
    num_layers: int = ModelShape.num_layers
    context: int = ModelShape.context
    sequences: int = 4
    validation_sequences: int = 32
    lr: float = 1.5e-3  # of .003, .0015 and .00075 the best for the exact path
    seed: int = 1
    text: tuple[str, ...] = ()
    timeout_s: int = 300

    def __post_init__(self) -> None:
        arms_named(",".join(self.arms))
        _check_ranges(self, _RANGES)
        _ = self.shape
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype '{self.dtype}': expected one of {', '.join(DTYPES)}")
        if not 0 < self.lr < 1:
            raise ValueError(f"lr {self.lr}: expected above 0 and below 1")
        for link in self.links:
            parse_link_rate(link)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def shape(self) -> ModelShape:
        """Size of the model."""
        return ModelShape(self.width, self.num_layers, self.context)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainingConfig":
        """Undo `as_json`, also after a trip through JSON."""
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**(values | lists))


def _check_ranges(values: object, ranges: dict[str, tuple[int, int]]) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(values, name)
        if not low <= value <= high:
            raise ValueError(f"{name} {value}: expected {low} to {high}")
