"""What `isthmus watch` makes of the file that `isthmus.log_to` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.report.loggers import SCHEMA

#: A line of the file: means of a step since the line before, but for ``exact_calls``, which counts.
Record = dict[str, Any]
#: The columns: name, width, the record's figure and its form. The clock and steps a second come before them.
_FIGURES = (
    ("MB sent a step", 14, "sent_megabytes", ".3g"),
    ("exact: times", 12, "compression", ".2f"),
    ("s in calls a step", 17, "ran_s", ".3g"),
    ("s waited a step", 15, "waited_s", ".3g"),
    ("exact calls", 11, "exact_calls", ".0f"),
    ("error", 8, "relative_squared_error", ".2g"),
)
COLUMNS = (("time", 8), ("step", 9), ("steps/s", 8), *((name, width) for name, width, *_ in _FIGURES))


def read_line(line: str) -> Record:
    """Raises ValueError if this is no such line."""
    try:
        record: Record = json.loads(line)
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']}, where {SCHEMA} is expected")
        return record | {"sent_megabytes": record["sent_bytes"] / 1e6}
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
            yield read_line(line.decode())


def head() -> str:
    """Return the names of columns."""
    return _in_columns([name for name, _ in COLUMNS])


def row(record: Record, before: Record | None, clock: str) -> str:
    """Return a line of figures. before: what steps a second are counted from; None: they are not known."""
    steps_per_s = ""
    if before is not None and record["time_s"] > before["time_s"] and record["step"] > before["step"]:
        steps_per_s = f"{(record['step'] - before['step']) / (record['time_s'] - before['time_s']):.3g}"
    figures = [format(record[key], form) if key in record else "" for _, _, key, form in _FIGURES]
    return _in_columns([clock, str(record["step"]), steps_per_s, *figures])


def _in_columns(cells: list[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
