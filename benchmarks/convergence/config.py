"""Arguments of `python -m isthmus.benchmarks.convergence`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.common.shape import DTYPES, ModelShape
from isthmus.benchmarks.convergence.arms import ARMS, BASELINE, FINALISTS, CodecArm
from isthmus.benchmarks.simulate.network import MAX_NODES, parse_link_rate
from isthmus.plan.ranges import check_names

OPTIMIZERS = ("adamw", "muon")
#: Models and batches. Both take 2048 bytes a step, and about as many parameters as their names say.
_SIZES: dict[str, tuple[ModelShape, int]] = {
    "1m": (ModelShape(width=128, num_layers=4, context=64), 32),
    "10m": (ModelShape(width=320, num_layers=8, context=128), 16),
}
_RANGES = {"steps": (1, 1_000_000), "nodes": (2, MAX_NODES), "validation_sequences": (16, 1_048_576)}


@dataclass(frozen=True)
class Setting:
    """The common setting of runs that are compared. Raises ValueError naming field, value and range."""

    nodes: int = 2
    steps: int = 500
    validation_sequences: int = 1024
    #: All ranks together, in a step: the batch does not grow with the nodes.
    sequences: int = 32
    shape: ModelShape = _SIZES["1m"][0]
    #: Parameters in compute, and gradients in their reduction.
    dtype: str = "fp32"
    #: Rate of every node's link; "": no limit.
    link: str = ""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if self.link:
            parse_link_rate(self.link)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype '{self.dtype}': expected one of {', '.join(DTYPES)}")

    def check_ranks(self, ranks_per_node: int) -> None:
        """Raise ValueError if so many ranks on each node cannot share batch and weights equally."""
        ranks = self.nodes * ranks_per_node
        for name, value in (("sequences", self.sequences), ("width", self.shape.width)):
            if value % ranks:
                raise ValueError(f"{name} {value}: expected a multiple of {ranks}, the number of ranks")


@dataclass(frozen=True)
class ConvergenceConfig:
    """Arguments of `python -m isthmus.benchmarks.convergence`. Raises ValueError naming what is wrong."""

    finalists: tuple[str, ...] = option(FINALISTS, "Which arms, beside exact; an unknown name lists them.")
    num_seeds: int = option(6, "How many; each gives all arms the same weights and batches.", name="seeds")
    optimizers: tuple[str, ...] = option(("adamw",), "Some of adamw and muon.")
    lr: float = option(0.002, "Peak learning rate of AdamW.")  # of the powers of two times .001 the best for exact
    muon_lr: float = option(0.008, "Peak learning rate of Muon, beside which AdamW has --lr.")  # tuned as lr
    nodes: tuple[int, ...] = option((2, 4), "Simulated nodes, 2 to 8.", parse=int)
    size: str = option("1m", "Parameters of the model: 1m (0.86 million) or 10m.")
    dtype: str = option("fp32", "Compute and reduction: bf16 or fp32, which is faster on most processors.")
    link: str = option("", "Rate of every node's link, to compare times as well.", show_default="no limit")
    steps: int = option(500, "Steps of a run.")
    validation_sequences: int = option(1024, "Sequences held out.")
    text: tuple[str, ...] = option(
        (),
        "Text to train on; repeatable.",
        is_file=True,
        show_default="Python's standard library",
    )

    def __post_init__(self) -> None:
        check_ranges(self, {"num_seeds": (1, 255)})
        check_names("finalist", self.finalists, ARMS)
        check_names("optimizer", self.optimizers, OPTIMIZERS)
        check_names("size", (self.size,), _SIZES)
        for name in ("lr", "muon_lr"):
            if not 0 < getattr(self, name) < 10:
                raise ValueError(f"{name} {getattr(self, name)}: expected above 0 and below 10")
        if not self.nodes:
            raise ValueError("no nodes: expected some")
        for setting in self.settings():
            for arm in self.arms():
                setting.check_ranks(arm.ranks_per_node)
                if arm.layout == "ddp" and self.dtype != "fp32":
                    raise ValueError(f"dtype '{self.dtype}': {arm.name} trains in fp32")

    def arms(self) -> tuple[CodecArm, ...]:
        """The baseline and the finalists, in their order."""
        return (ARMS[BASELINE], *(ARMS[name] for name in self.finalists if name != BASELINE))

    def settings(self) -> list[Setting]:
        """One for each number of nodes, in this order."""
        shape, sequences = _SIZES[self.size]
        return [
            Setting(nodes, self.steps, self.validation_sequences, sequences, shape, self.dtype, self.link)
            for nodes in self.nodes
        ]

    @property
    def seeds(self) -> range:
        """The seeds of each setting's runs."""
        return range(1, self.num_seeds + 1)
