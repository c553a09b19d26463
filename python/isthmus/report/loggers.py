"""``isthmus.log_to``: figures of the statistics, every some steps, to a logger of named numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from isthmus.report.statistics import stats
from isthmus.report.summary import crossing

_PREFIX = "isthmus/"


def log_to(writer: Any, *, every: int = 100) -> RemovableHandle:
    """Write this rank's figures to `writer` every `every` steps of the optimizer; ``remove()`` of the result ends it.

    writer: anything with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter, or with ``log(dict)``,
    such as wandb or a run of it; its dicts hold ``isthmus/step``.

    Steps are counted from this call, those of the first optimizer that makes one. Called by the optimizer's ``step()``,
    on its thread; no communication.

    ``isthmus/sent_bytes`` and ``exact_bytes``, ``ran_s`` and ``waited_s`` are of one step, as means since the last
    time: payload between nodes, in two tiers and by the world backend, what it would have been exact, seconds of calls
    in two tiers, and those the program waited for them. ``compression`` is the bytes' ratio, ``exact_calls`` counts
    reductions that stayed exact, ``relative_squared_error`` is the mean over units of what codecs dropped, where it was
    measured (since `reset_stats`).

    Raises TypeError for a writer that has neither, ValueError for `every` below 1.
    """
    write = _write_function(writer)
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every={every!r}: expected a whole number of steps")
    if every < 1:
        raise ValueError(f"every={every}: expected 1 or more steps")
    return register_optimizer_step_post_hook(_Logger(write, every))


def _write_function(writer: Any) -> Callable[[dict[str, float], int], None]:
    if callable(getattr(writer, "add_scalar", None)):

        def add_scalars(values: dict[str, float], step: int) -> None:
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)

        return add_scalars
    if callable(getattr(writer, "log", None)):
        return lambda values, step: writer.log(values | {f"{_PREFIX}step": step})
    raise TypeError(f"writer {type(writer).__name__}: expected add_scalar(tag, value, step) or log(dict)")


@dataclass
class _Logger:
    """Counts steps, and writes what changed since the last time."""

    write: Callable[[dict[str, float], int], None]
    every: int
    step: int = 0
    optimizer: int | None = None
    before: dict[str, float] = field(default_factory=dict)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.optimizer is None:
            self.optimizer = id(optimizer)
        if self.optimizer != id(optimizer):
            return
        self.step += 1
        if self.step % self.every == 0:
            self.write(self._values(stats()), self.step)

    def _values(self, found: dict[str, Any]) -> dict[str, float]:
        crossed = crossing(found)
        totals = {
            "sent_bytes": crossed.sent_bytes,
            "exact_bytes": crossed.exact_bytes,
            "ran_s": found["ran_s"],
            "waited_s": found["waited_s"],
            "exact_calls": sum(found["exact_calls"].values()),
        }
        since = totals
        if all(totals[name] >= before for name, before in self.before.items()):  # else reset_stats() was called
            since = {name: value - self.before.get(name, 0) for name, value in totals.items()}
        self.before = totals
        values = {name: value if name == "exact_calls" else value / self.every for name, value in since.items()}
        if since["sent_bytes"]:
            values["compression"] = since["exact_bytes"] / since["sent_bytes"]
        errors = [unit["relative_squared_error"] for unit in found["units"]]
        known = [error for error in errors if error is not None]
        if known:
            values["relative_squared_error"] = sum(known) / len(known)
        return {f"{_PREFIX}{name}": value for name, value in values.items()}
