"""What `isthmus watch` makes of the file that `isthmus.log_to` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.report.loggers import SCHEMA

#: Names and widths of the columns.
COLUMNS = (
    *(("time", 8), ("step", 9), ("steps/s", 8), ("MB sent a step", 14), ("exact: times", 12)),
    *(("s in calls a step", 17), ("s waited a step", 15), ("exact calls", 11), ("error", 8)),
)


@dataclass(frozen=True)
class Record:
    """A line of the file: means of a step since the line before, but for ``exact_calls``, which counts."""

    time_s: float
    step: int
    sent_bytes: float
    ran_s: float
    waited_s: float
    exact_calls: float
    compression: float | None = None
    relative_squared_error: float | None = None

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Raises ValueError if this is no such line."""
        try:
            values = json.loads(line)
            if values["schema"] != SCHEMA:
                raise ValueError(f"schema {values['schema']}, where {SCHEMA} is expected")
            return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a line of isthmus.log_to: {line[:80]!r}") from error


class Follower:
    """Reads a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_records(self) -> Iterator[Record]:
        """Yield the whole lines that came since the last call. A file that was begun anew is read from its beginning.

        Raises OSError if there is no such file, ValueError if it is none of `isthmus.log_to`.
        """
        with self._path.open("rb") as file:
            if file.seek(0, 2) < self._read_bytes:
                self._read_bytes = 0
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        for line in whole.splitlines():
            yield Record.from_line(line.decode())


def head() -> str:
    """Return the names of columns."""
    return "  ".join(name.rjust(width) for name, width in COLUMNS)


def row(record: Record, before: Record | None, clock: str) -> str:
    """Return a line of figures. before: what steps a second are counted from; None: they are not known."""
    steps_per_s = None
    if before is not None and record.time_s > before.time_s and record.step > before.step:
        steps_per_s = (record.step - before.step) / (record.time_s - before.time_s)
    cells = (
        *(clock, str(record.step), _text(steps_per_s, ".3g"), f"{record.sent_bytes / 1e6:.3g}"),
        *(_text(record.compression, ".2f"), f"{record.ran_s:.3g}", f"{record.waited_s:.3g}"),
        *(f"{record.exact_calls:.0f}", _text(record.relative_squared_error, ".2g")),
    )
    return "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
