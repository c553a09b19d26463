"""``isthmus.log_to``: figures of the statistics, every some steps, to a logger of named numbers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from isthmus.report.statistics import stats
from isthmus.report.summary import crossing

_PREFIX = "isthmus/"
#: The version of the lines of a file.
SCHEMA = 1


def log_to(writer: Any, *, every: int = 100) -> RemovableHandle:
    """Write this rank's figures to `writer` every `every` steps of the optimizer; ``remove()`` of the result ends it.

    writer: anything with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter, or with ``log(dict)``,
    such as wandb or a run of it; its dicts hold ``isthmus/step``. Or a path: rank 0 of the job appends lines of JSON to
    that file; the other ranks write nothing.

    Steps are counted from this call, those of the first optimizer that makes one. Called by the optimizer's ``step()``,
    on its thread; no communication.

    ``isthmus/sent_bytes`` and ``exact_bytes``, ``ran_s`` and ``waited_s`` are of one step, as means since the last
    time: payload between nodes, what it would have been exact, seconds of calls in two tiers, and those the program
    waited for them. ``compression`` is the bytes' ratio, ``exact_calls`` counts reductions that stayed exact,
    ``relative_squared_error`` is the mean over units of what codecs dropped, where it was measured (since
    `reset_stats`).

    Raises TypeError for a writer that has neither, ValueError for `every` below 1, OSError where the file cannot be
    written.
    """
    write = _write_function(writer)
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every={every!r}: expected a whole number of steps")
    if every < 1:
        raise ValueError(f"every={every}: expected 1 or more steps")
    return register_optimizer_step_post_hook(_Logger(write, every))


def _write_function(writer: Any) -> Callable[[dict[str, float], int], None]:
    if isinstance(writer, str | os.PathLike):
        return _lines_of(Path(writer))
    if callable(getattr(writer, "add_scalar", None)):

        def add_scalars(values: dict[str, float], step: int) -> None:
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)

        return add_scalars
    if callable(getattr(writer, "log", None)):
        return lambda values, step: writer.log(values | {f"{_PREFIX}step": step})
    raise TypeError(f"writer {type(writer).__name__}: expected add_scalar(tag, value, step) or log(dict), or a path")


def _lines_of(path: Path) -> Callable[[dict[str, float], int], None]:
    if dist.is_initialized() and dist.get_rank() != 0:
        return lambda values, step: None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("a").close()  # says at once whether it can be written

    def append(values: dict[str, float], step: int) -> None:
        record = {"schema": SCHEMA, "time_s": time.time(), "step": step}
        record |= {name.removeprefix(_PREFIX): value for name, value in values.items()}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    return append


class _Logger:
    """Counts steps, and writes what changed since the last time."""

    def __init__(self, write: Callable[[dict[str, float], int], None], every: int) -> None:
        self._write = write
        self._every = every
        self._step = 0
        self._optimizer: int | None = None
        self._before: dict[str, float] = {}

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer != id(optimizer):
            return
        self._step += 1
        if self._step % self._every == 0:
            self._write(self._values(stats()), self._step)

    def _values(self, found: dict[str, Any]) -> dict[str, float]:
        crossed = crossing(found)
        totals = {
            "sent_bytes": crossed.sent_bytes,
            "exact_bytes": crossed.exact_bytes,
            "ran_s": found["ran_s"],
            "waited_s": found["waited_s"],
            "exact_calls": sum(found["exact_calls"].values()),
        }
        since = {name: self._since(name, value) for name, value in totals.items()}
        self._before = totals
        values = {name: value if name == "exact_calls" else value / self._every for name, value in since.items()}
        if since["sent_bytes"]:
            values["compression"] = since["exact_bytes"] / since["sent_bytes"]
        errors = [unit["relative_squared_error"] for unit in found["units"]]
        known = [error for error in errors if error is not None]
        if known:
            values["relative_squared_error"] = sum(known) / len(known)
        return {f"{_PREFIX}{name}": value for name, value in values.items()}

    def _since(self, name: str, value: float) -> float:
        before = self._before.get(name, 0)
        return value - before if value >= before else value  # reset_stats() was called meanwhile
