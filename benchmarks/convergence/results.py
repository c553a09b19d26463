"""Runs of `python -m isthmus.benchmarks.convergence`, and the file with a line of JSON for each that has finished."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus.base import native
from isthmus.benchmarks.common.report import machine, versions
from isthmus.benchmarks.common.shape import ModelShape
from isthmus.benchmarks.convergence.arms import CodecArm
from isthmus.benchmarks.convergence.config import Setting


@dataclass(frozen=True)
class Run:
    """One training run, with everything that its result depends on."""

    setting: Setting
    arm: str
    options: dict[str, Any]
    ranks_per_node: int
    lr: float
    seed: int
    text: str
    versions: dict[str, str]
    #: Empty in old records. Rounding differs between processors, so pairs are of one machine.
    machine: str = ""
    layout: str = "fsdp"
    local_steps: int = 0
    #: 0: AdamW alone.
    muon_lr: float = 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.setting.nodes * self.ranks_per_node

    @property
    def key(self) -> str:
        """Equal text means the same run."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def compared_with(self) -> str:
        """Equal text means that results can be compared."""
        alike = [asdict(self.setting), self.lr, self.muon_lr, self.text, self.versions, self.machine]
        return json.dumps(alike, sort_keys=True)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Run":
        """Undo `asdict`, also after a trip through JSON."""
        setting = values["setting"]
        return cls(**(values | {"setting": Setting(**(setting | {"shape": ModelShape(**setting["shape"])}))}))

    def __str__(self) -> str:
        return f"{self.arm}, {self.setting.nodes} nodes, {self.optimizers}, seed {self.seed}"

    @property
    def optimizers(self) -> str:
        """Which, at which peak learning rate."""
        return (f"muon {self.muon_lr:g}, " if self.muon_lr else "") + f"adamw {self.lr:g}"


def make_run(setting: Setting, arm: CodecArm, lr: float, seed: int, text: str, muon_lr: float = 0) -> Run:
    """A run of this version of Isthmus."""
    found = {name: version for name, version in versions().items() if name in ("isthmus", "torch")}
    found["packets"] = str(native.load().PACKET_VERSION)
    return Run(
        setting=setting,
        arm=arm.name,
        options=arm.options,
        ranks_per_node=arm.ranks_per_node,
        lr=lr,
        seed=seed,
        text=text,
        versions=found,
        machine=machine()["processor"],
        layout=arm.layout,
        local_steps=arm.local_steps,
        muon_lr=muon_lr,
    )


def text_digest(files: Sequence[Path]) -> str:
    """The identity of a text: a hash of the files' bytes, in order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


Results = dict[str, tuple[Run, dict[str, Any]]]


def read_results(path: Path) -> Results:
    """Runs that have finished with their results, by `Run.key`. A file that does not exist has none.

    A last line that was cut off does not count. Raises ValueError naming the file and the line that is not a result.
    """
    results: Results = {}
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            run, result = Run.from_json(record["run"]), record["result"]
            results[run.key] = (run, dict(result))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a result of this benchmark ({error!r})") from None
    return results


class ResultsFile:
    """A results file that is written, too, by one process at a time. Raises ValueError if a line is no result."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.results = read_results(path)
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

    def append(self, run: Run, result: dict[str, Any]) -> None:
        """Add a run that has finished; when this returns it is on the disk."""
        record = {"run": asdict(run), "result": result}
        with self._path.open("ab") as file:
            file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[run.key] = (run, result)
