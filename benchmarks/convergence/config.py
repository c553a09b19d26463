"""Arguments of `isthmus bench convergence`."""

from dataclasses import dataclass, replace
from pathlib import Path

from isthmus.benchmarks.common.options import check_ranges, option, parse_whole, part
from isthmus.benchmarks.common.shape import DTYPES, ModelShape
from isthmus.benchmarks.convergence.arms import ARMS, BASELINE, FINALISTS, CodecArm
from isthmus.benchmarks.simulate import MAX_NODES, parse_link_rate
from isthmus.plan.ranges import check_names

OPTIMIZERS = ("adamw", "sgd")
#: fsdp: gradients are reduce-scattered over all ranks; hsdp: all-reduced between nodes, each of which has all weights.
LAYOUTS = ("fsdp", "hsdp")
#: After which share of the steps the whole validation set is evaluated.
VALIDATED_SHARES = (0.25, 0.5, 0.75, 1.0)

_RANGES = {
    "steps": (len(VALIDATED_SHARES), 1_000_000),
    "nodes": (2, MAX_NODES),
    "sequences": (1, 65_536),
    "validation_sequences": (1, 1_048_576),
}
MAX_FINALISTS = 6


@dataclass(frozen=True)
class Setting:
    """The common setting of runs that are compared. Raises ValueError naming field, value and range."""

    optimizer: str = "adamw"
    steps: int = option(500, "Steps of a run.")
    nodes: int = 2
    sequences: int = option(32, "Sequences of all ranks together in a step.")  # the batch does not grow with the nodes
    validation_sequences: int = option(1024, "Sequences held out, the same for all runs.")
    width: int = option(128, "Width of the model, a multiple of 64.")
    num_layers: int = option(4, "Transformer blocks.", name="layers")
    context: int = option(64, "Bytes in a sequence.")
    dtype: str = option("bf16", "Of compute and reduction: bf16 or fp32.")  # the optimizer has float32
    layout: str = option("fsdp", "fsdp: gradients are reduce-scattered. hsdp: all-reduced between nodes.")

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        for name, allowed in (("optimizer", OPTIMIZERS), ("dtype", DTYPES[:2]), ("layout", LAYOUTS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} '{getattr(self, name)}': expected one of {', '.join(allowed)}")
        _ = self.shape

    @property
    def shape(self) -> ModelShape:
        """Size of the model."""
        return ModelShape(self.width, self.num_layers, self.context)

    def check_ranks(self, ranks_per_node: int) -> None:
        """Raise ValueError if so many ranks on each node cannot share batch and weights equally."""
        ranks = self.nodes * ranks_per_node
        for name in ("sequences", "width"):
            if getattr(self, name) % ranks:
                raise ValueError(f"{name} {getattr(self, name)}: expected a multiple of {ranks}, the number of ranks")


@dataclass(frozen=True)
class ConvergenceConfig:
    """Arguments of `isthmus bench convergence`. setting: its optimizer and nodes do not matter.

    lr None: the best of the baseline's that the results file has. Raises ValueError naming what is wrong.
    """

    finalists: tuple[str, ...] = option(
        FINALISTS, "At most six arms.", show_default="as docs/convergence.md chose them"
    )
    optimizers: tuple[str, ...] = option(("adamw", "sgd"), "adamw, sgd.")
    num_seeds: int = option(6, "How many; each gives all arms the same weights and batches.", name="seeds")
    lr: float | None = option(None, "Learning rate.", show_default="the best in the results file")
    nodes: tuple[int, ...] = option((2, 4), "Simulated nodes, 2 to 8.", parse=parse_whole)
    links: tuple[str, ...] = option(
        ("200mbit", "50mbit"), "Rate of every node's link in the timed steps.", name="link", is_repeatable=True
    )
    setting: Setting = part(
        Setting(),
        layout=None,
        steps=None,
        dtype=None,
        width=None,
        num_layers=None,
        context=None,
        sequences=None,
        validation_sequences=None,
    )
    text: tuple[str, ...] = option(
        (),
        "Text to train on; repeatable.",
        is_repeatable=True,
        is_file=True,
        show_default="Python's standard library",
    )

    def __post_init__(self) -> None:
        check_ranges(self, {"num_seeds": (1, 1000)})
        if self.lr is not None and not 0 < self.lr < 10:
            raise ValueError(f"lr {self.lr}: expected above 0 and below 10")
        for name in ("optimizers", "nodes"):
            if not getattr(self, name):
                raise ValueError(f"no {name}: expected some")
        for link in self.links:
            parse_link_rate(link)
        for setting in self.settings():
            for arm in self.arms():
                setting.check_ranks(arm.ranks_per_node)

    def arms(self) -> tuple[CodecArm, ...]:
        """The baseline and the finalists, in their order."""
        return finalists_named(self.finalists)

    def settings(self) -> list[Setting]:
        """One for each optimizer and number of nodes, in this order."""
        return [
            replace(self.setting, optimizer=optimizer, nodes=nodes)
            for optimizer in self.optimizers
            for nodes in self.nodes
        ]

    @property
    def seeds(self) -> range:
        """The seeds of each setting's runs."""
        return range(1, self.num_seeds + 1)

    @property
    def files(self) -> tuple[Path, ...]:
        """The text, if one was given."""
        return tuple(map(Path, self.text))


def finalists_named(names: tuple[str, ...]) -> tuple[CodecArm, ...]:
    """The baseline and the arms of these names, in their order. Raises ValueError naming what is unknown or twice."""
    check_names("finalist", names, ARMS)
    for name in names:
        if ARMS[name].noise:
            raise ValueError(f"finalist '{name}' is no codec")
    arms = (ARMS[BASELINE], *(ARMS[name] for name in names if name != BASELINE))
    if not 1 <= len(arms) - 1 <= MAX_FINALISTS:
        raise ValueError(f"{len(arms) - 1} finalists: expected 1 to {MAX_FINALISTS}")
    return arms
