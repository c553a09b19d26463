"""The report of a run, as a plugin of pytest: JSON with everything, a short text for people, and what programs printed.

It is written anew after each step. A step that was not run has not passed.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu.programs import FAILED, NOT_RUN, OK, Check

#: Of what a program printed, where it failed.
TAIL_LINES = 25


@dataclass(frozen=True)
class Outcome:
    """A step that was run, or was not. lines: the last ones that its program printed."""

    name: str
    what: str
    result: str
    reason: str = ""
    seconds: float = 0
    command: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass
class Report:
    """What was done so far. planned: names of all steps, so that a report shows which ones it lacks."""

    gpu: Mapping[str, Any]
    versions: Mapping[str, Any]
    folder: Path
    logs: Path
    planned: list[str] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    outcomes: list[Outcome] = field(default_factory=list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the tests that pytest will run."""
        self.planned += [item.name.removeprefix("test_") for item in session.items]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Add a step when its test has ended, or was skipped before it began."""
        told: pytest.TestReport = yield
        if told.when == "call" or (told.when == "setup" and not told.passed):
            assert isinstance(item, pytest.Function)
            result = OK if told.passed else NOT_RUN if told.skipped else FAILED
            reason = str(call.excinfo.value) if call.excinfo else ""
            self.add(
                Outcome(
                    item.name.removeprefix("test_"),
                    " ".join((item.function.__doc__ or "").split()),
                    result,
                    reason,
                    told.duration,
                    **dict(item.user_properties),
                )
            )
        return told

    def add(self, outcome: Outcome) -> None:
        """Add a step, and write the report: a kill later loses nothing of it."""
        self.outcomes.append(outcome)
        self.write()

    @property
    def missing(self) -> list[str]:
        """Names of steps that were planned and not even tried."""
        return [name for name in self.planned if name not in {outcome.name for outcome in self.outcomes}]

    @property
    def failed(self) -> list[str]:
        """Names of steps that failed."""
        return [outcome.name for outcome in self.outcomes if outcome.result == FAILED]

    @property
    def not_run(self) -> list[str]:
        """Names of planned steps that were not run, for whatever reason."""
        ran = {outcome.name for outcome in self.outcomes if outcome.result != NOT_RUN}
        return [name for name in self.planned if name not in ran]

    @property
    def verdict(self) -> str:
        """What all steps came to."""
        told = (("FAILED", self.failed), ("NOT RUN", self.not_run))
        return "; ".join(f"{text}: {', '.join(names)}" for text, names in told if names) or "passed"

    def write(self) -> list[Path]:
        """Write all files; return their paths. A reader never sees half of one."""
        values = {
            "created": self.created,
            "passed": self.verdict == "passed",
            "failed": self.failed,
            "not_run": self.not_run,
            "gpu": dict(self.gpu),
            "versions": dict(self.versions),
            "steps": [asdict(outcome) for outcome in self.outcomes],
        }
        name = "report-" + re.sub(r"[^a-z0-9]+", "-", self.gpu.get("name", "no gpu").lower()).strip("-")
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = [self.folder / f"{name}.json", self.folder / f"{name}.md", self.folder / "logs.tar.gz"]
        drafts = [path.with_name(f"{path.name}.new") for path in paths]
        drafts[0].write_text(json.dumps(values, indent=1) + "\n")
        drafts[1].write_text(self.text())
        with tarfile.open(drafts[2], "w:gz") as archive:
            for log in sorted(self.logs.glob("*.log")):
                archive.add(log, log.name)
        for draft, path in zip(drafts, paths, strict=True):
            draft.replace(path)
        return paths

    def text(self) -> str:
        """Return the short text, as Markdown: a table of steps, then figures and what went wrong."""
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items() if value is not None)
        lines = [
            f"# Isthmus on {self.gpu.get('name', 'no GPU')}: {self.verdict}",
            "",
            f"{self.created}. {versions}",
            "",
        ]
        lines += ["| step | result | checks | seconds | what |", "|---|---|---|---|---|"]
        lines += [_row(outcome) for outcome in self.outcomes]
        lines += [f"| {name} | not reached | | | |" for name in self.missing]
        return "\n".join([*lines, *(line for outcome in self.outcomes for line in _details(outcome))]) + "\n"


def _row(outcome: Outcome) -> str:
    result = outcome.result + (f": {outcome.reason}" if outcome.reason else "")
    checks = f"{sum(check.result == OK for check in outcome.checks)} of {len(outcome.checks)}"
    cells = [outcome.name, result, checks, f"{outcome.seconds:.1f}", outcome.what]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _details(outcome: Outcome) -> Iterator[str]:
    told = [check for check in outcome.checks if check.figures or check.result != OK]
    tail = outcome.lines[-TAIL_LINES:] if outcome.result == FAILED else ()
    if told or tail:
        yield from ("", f"## {outcome.name}: {outcome.result}", "")
        yield from map(_told, told)
    if tail:
        yield from ("", "```", *tail, "```")


def _told(check: Check) -> str:
    shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in check.figures.values())
    figures = ", ".join(f"{name} {value}" for name, value in zip(check.figures, shown, strict=True))
    wrong = "" if check.result == OK else f"{check.result}: {' '.join(check.detail.split())[:400]}"
    return f"- {check.check}: {', '.join(filter(None, (wrong, figures)))}"
