"""Sizes of the model that benchmarks train."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import check_ranges

HEAD_WIDTH = 64
DTYPES = ("bf16", "fp32")


@dataclass(frozen=True)
class ModelShape:
    """Size of the model: width in whole heads of 64. Raises ValueError naming field, value and range."""

    width: int = 256
    num_layers: int = 4
    context: int = 128

    def __post_init__(self) -> None:
        check_ranges(self, {"width": (HEAD_WIDTH, 16_384), "num_layers": (1, 128), "context": (1, 65_536)})
        if self.width % HEAD_WIDTH:
            raise ValueError(f"width {self.width}: expected a multiple of {HEAD_WIDTH}, the width of a head")
