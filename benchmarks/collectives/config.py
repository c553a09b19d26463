"""Arguments of `isthmus bench collectives`."""

from dataclasses import dataclass, replace
from typing import Any

from isthmus.benchmarks.common.options import check_ranges, option, parse_bytes
from isthmus.benchmarks.here.config import HereConfig
from isthmus.benchmarks.simulate.network import parse_link_rate
from isthmus.plan.ranges import check_choice, check_names
from isthmus.plan.strategies import ARMS

OPERATIONS = ("reduce_scatter", "all_gather", "all_reduce")
BACKENDS = ("gloo", "none", "flat-tagc", "tagc", "quant", "quant2")
#: Those that are none of Isthmus: of tensors on the CPU, and on a GPU.
PLAIN = ("gloo", "nccl")
_DEFAULT_BACKENDS = ("gloo", "none", "flat-tagc", "tagc", "quant")
ELEMENT_BYTES = {"float": 4, "bfloat16": 2, "half": 2}


@dataclass(frozen=True)
class CollectivesConfig(HereConfig):
    """Arguments of `isthmus bench collectives`. Raises ValueError naming field, value and range."""

    link: str | None = option(
        None, "Rate of every node's link, such as 200mbit.", show_default="no limit", only="simulated"
    )
    min_bytes: int = option(
        1 << 16, "Smallest size; K, M, G are powers of 1024.", show_default="64K", parse=parse_bytes
    )
    max_bytes: int = option(1 << 24, "Largest size.", show_default="16M", parse=parse_bytes)
    factor: int = option(4, "From one size to the next.")
    operations: tuple[str, ...] = option(OPERATIONS, "Which collectives.")
    backends: tuple[str, ...] = option(_DEFAULT_BACKENDS, "Which backends; with --here on GPUs nccl in place of gloo.")
    dtype: str = option("float", "float, bfloat16 or half.")
    iterations: int = option(5, "Timed calls of each.")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges = {
            "min_bytes": (1, self.max_bytes),
            "max_bytes": (1, 1 << 32),
            "factor": (2, 1 << 20),
            "iterations": (1, 10_000),
        }
        check_ranges(self, ranges)
        check_names("operation", self.operations, OPERATIONS)
        check_names("backend", self.backends, (*BACKENDS, "nccl") if self.here else BACKENDS)
        check_choice("dtype", self.dtype, ELEMENT_BYTES)
        if self.link is not None:
            parse_link_rate(self.link)

    def on_device(self) -> "CollectivesConfig":
        """The same with backends for the device."""
        if self.device == "cuda" and self.backends == _DEFAULT_BACKENDS:
            return replace(self, backends=("nccl", *_DEFAULT_BACKENDS[1:]))
        unfit = "gloo" if self.device == "cuda" else "nccl"
        if unfit in self.backends:
            raise ValueError(f"backend '{unfit}': not for tensors on {self.device}")
        return self

    def element_counts(self) -> list[int]:
        """Elements of the whole tensor for each size: rounded up to a multiple of the ranks."""
        world_size = self.nodes * self.ranks_per_node
        counts = []
        num_bytes = self.min_bytes
        while num_bytes <= self.max_bytes:
            part = -(-num_bytes // (ELEMENT_BYTES[self.dtype] * world_size))
            counts.append(part * world_size)
            num_bytes *= self.factor
        return counts


def options_of(backend: str) -> dict[str, Any]:
    """The options of a backend on Isthmus."""
    return {**(ARMS[backend].options or {}), "min_elements": "0"}
