"""Arguments of `isthmus bench weights`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.common.shape import ModelShape


@dataclass(frozen=True)
class WeightsConfig:
    """Arguments of `isthmus bench weights`. Raises ValueError naming what is wrong."""

    lr: tuple[float, ...] = option((1e-6, 1e-5, 1e-4, 3e-4, 1e-3), "Learning rates.", parse=float)
    steps: int = option(100, "Steps of training before, at 1e-3.")
    steps_at_lr: int = option(4, "Steps at each learning rate, of which the last is measured.")
    width: int = option(ModelShape.width, "Width of the model, a multiple of 64.")
    num_layers: int = option(ModelShape.num_layers, "Transformer blocks.", name="layers")
    sequences: int = option(16, "Sequences of a batch.")
    seed: int = option(1, "Seed of weights and batches.")

    def __post_init__(self) -> None:
        for lr in self.lr:
            if not 0 < lr < 1:
                raise ValueError(f"lr {lr}: expected above 0 and below 1")
        check_ranges(self, {"steps": (1, 100_000), "steps_at_lr": (1, 1000), "sequences": (1, 4096)})
        _ = self.shape

    @property
    def shape(self) -> ModelShape:
        """Size of the model."""
        return ModelShape(self.width, self.num_layers)
