"""Arguments of `isthmus bench weights`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import option
from isthmus.benchmarks.common.shape import DTYPES, ModelShape


@dataclass(frozen=True)
class WeightsConfig:
    """Arguments of `isthmus bench weights`. Raises ValueError naming what is wrong."""

    lr: tuple[float, ...] = option((1e-5, 3e-5, 1e-4, 3e-4, 6e-4), "Learning rates.", parse=float)
    dtype: str = option("bf16", "Type that weights are gathered in: bf16, fp16 or fp32.")
    std: float = option(0.02, "Matrices are scaled to this standard deviation, as large models have it; 0: as trained.")
    steps: int = option(150, "Steps of training before the first that is looked at.", min=20)
    replayed: int = option(16, "Steps that are replayed at each learning rate, of which the last is coded.", min=1)
    points: int = option(3, "Points of training at which that is done.", min=1)
    width: int = option(ModelShape.width, "Width of the model, a multiple of 64.")
    num_layers: int = option(ModelShape.num_layers, "Transformer blocks.", name="layers")
    sequences: int = option(32, "Sequences of a batch.", min=1)
    seed: int = option(1, "Seed of weights and batches.")

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype '{self.dtype}': expected one of {', '.join(DTYPES)}")
        for lr in self.lr:
            if not 0 < lr < 1:
                raise ValueError(f"lr {lr}: expected above 0 and below 1")
        if not 0 <= self.std < 100:
            raise ValueError(f"std {self.std}: expected 0 or more, below 100")
        _ = self.shape

    @property
    def shape(self) -> ModelShape:
        """Size of the model."""
        return ModelShape(self.width, self.num_layers, context=128)
