"""The identity of a run of `isthmus bench convergence`."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus import _C
from isthmus.benchmarks.common.machine import versions
from isthmus.benchmarks.convergence.arms import CodecArm
from isthmus.benchmarks.convergence.config import Setting


@dataclass(frozen=True)
class Run:
    """One training run, with everything that its result depends on."""

    #: "screen": simulated nodes in one process, by an earlier version; "real": processes on the backend; "timed":
    #: those, over a shaped link.
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
    """The identity of a text: a hash of the files' bytes, in order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
