"""Arguments of `isthmus bench bias`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import option


@dataclass(frozen=True)
class BiasConfig:
    """Arguments of `isthmus bench bias`. Raises ValueError naming what is wrong."""

    num_elements: int = option(262_144, "Of each gradient, an even number.", name="elements", min=2)
    num_steps: int = option(8, "Reductions of each row.", name="steps", min=1)

    def __post_init__(self) -> None:
        if self.num_elements % 2:
            raise ValueError(f"elements {self.num_elements}: expected an even number, for two ranks")
