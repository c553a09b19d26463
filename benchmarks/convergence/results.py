"""The results file: one line of JSON for each run that has finished. Runs that are in it are not run again."""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isthmus.benchmarks.convergence.runs import Run


class Results:
    """Runs that have finished, by `Run.key`; each {"run": Run.as_json(), "result": ...}."""

    def __init__(self, records: list[dict[str, Any]] | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self._by_key: dict[str, dict[str, Any]] = {}
        for record in records or []:
            self._add(record)

    def result(self, run: Run) -> dict[str, Any] | None:
        """The result of `run`, if it has finished."""
        record = self._by_key.get(run.key)
        return None if record is None else record["result"]

    def _add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self._by_key[Run.from_json(record["run"]).key] = record


def read_results(path: Path) -> Results:
    """Read a results file; one that does not exist has no results. A last line that was cut off does not count.

    Raises ValueError naming the file and the line that is not a result.
    """
    if not path.exists():
        return Results()
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            Run.from_json(record["run"])
            _check_result(record["result"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a result of this benchmark ({error!r})") from None
        records.append(record)
    return Results(records)


class ResultsFile(Results):
    """A results file that is written, too. A context manager; one process at a time has it open.

    Raises ValueError if another has, or if a line is no result.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            super().__init__(read_results(path).records)
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"{path}: another process is writing to it") from None
        except BaseException:
            self._file.close()
            raise

    def append(self, run: Run, result: dict[str, Any]) -> None:
        """Add a run that has finished; when this returns it is on the disk."""
        record = {"run": run.as_json(), "result": result}
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._add(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _check_result(result: dict[str, Any]) -> None:
    if not isinstance(result, dict):
        raise TypeError("no result")
