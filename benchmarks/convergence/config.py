"""What `isthmus bench convergence` is asked to do, and what tells one of its runs from every other."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus import _C
from isthmus.bench.config import DTYPES, ModelShape
from isthmus.bench.convergence_arms import CodecArm
from isthmus.bench.machine import versions
from isthmus.simulate import MAX_NODES

OPTIMIZERS = ("adamw", "sgd")
#: fsdp: gradients are reduce-scattered over all ranks; hsdp: all-reduced between nodes, each of which has all weights.
LAYOUTS = ("fsdp", "hsdp")
#: Where the search for the baseline's best learning rate begins.
FIRST_LEARNING_RATES = {"adamw": 2e-3, "sgd": 0.1}
#: After which share of the steps the whole validation set is evaluated.
VALIDATED_SHARES = (0.25, 0.5, 0.75, 1.0)

_RANGES = {
    "steps": (len(VALIDATED_SHARES), 1_000_000),
    "nodes": (2, MAX_NODES),
    "sequences": (1, 65_536),
    "validation_sequences": (1, 1_048_576),
}


@dataclass(frozen=True)
class Setting:
    """What all runs that are compared share. Raises ValueError naming field, value and range."""

    optimizer: str = "adamw"
    steps: int = 500
    nodes: int = 2
    #: Of all ranks together in a step: the batch does not grow with the nodes.
    sequences: int = 32
    validation_sequences: int = 1024
    width: int = 128
    num_layers: int = 4
    context: int = 64
    #: Of weights and gradients in compute and reduction; the optimizer has float32.
    dtype: str = "bf16"
    layout: str = "fsdp"

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} {value}: expected {low} to {high}")
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
class Run:
    """One training run, with everything that its result depends on."""

    #: "screen": simulated nodes in one process; "real": processes on the backend; "timed": those, over a shaped link.
    stage: str
    setting: Setting
    arm: str
    options: tuple[tuple[str, Any], ...]
    ranks_per_node: int
    lr: float
    seed: int
    text: str
    versions: tuple[tuple[str, str], ...]
    link: str = ""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.setting.nodes * self.ranks_per_node

    @property
    def key(self) -> str:
        """Equal text means the same run."""
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return asdict(self) | {"options": dict(self.options), "versions": dict(self.versions)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Run":
        """Undo `as_json`, also after a trip through JSON."""
        changed = {name: tuple(values[name].items()) for name in ("options", "versions")}
        return cls(**(values | changed | {"setting": Setting(**values["setting"])}))

    def __str__(self) -> str:
        return f"{self.arm}, {self.setting.optimizer}, lr {self.lr:g}, seed {self.seed}"


def make_run(stage: str, setting: Setting, arm: CodecArm, lr: float, seed: int, text: str, link: str = "") -> Run:
    """A run of this version of Isthmus."""
    steps = setting.steps
    found = versions() | {"packets": str(_C.PACKET_VERSION)}
    return Run(
        stage=stage,
        setting=setting,
        arm=arm.name,
        options=tuple(arm.options_for(steps).items()),
        ranks_per_node=arm.ranks_per_node,
        lr=lr,
        seed=seed,
        text=text,
        versions=tuple((name, found[name]) for name in ("isthmus", "torch", "packets")),
        link=link,
    )


def text_digest(files: Sequence[Path]) -> str:
    """What tells one text from another: a hash of the files' bytes, in order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
