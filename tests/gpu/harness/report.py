"""The report: a JSON file with everything, and a short text for people. Written anew after each step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu.harness.records import FAILED, NOT_RUN, OK, Check
from gpu.harness.steps import Outcome


@dataclass
class Report:
    """What was done so far. planned: names of all steps, so that a report shows which ones it lacks."""

    gpu: Mapping[str, Any]
    versions: Mapping[str, Any]
    planned: list[str] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Names of steps that were planned and not even tried."""
        return [name for name in self.planned if name not in {outcome.step.name for outcome in self.outcomes}]

    @property
    def failed(self) -> list[str]:
        """Names of steps that failed."""
        return [outcome.step.name for outcome in self.outcomes if outcome.result == FAILED]

    @property
    def not_run(self) -> list[str]:
        """Names of planned steps that were not run, for whatever reason."""
        ran = {outcome.step.name for outcome in self.outcomes if outcome.result != NOT_RUN}
        return [name for name in self.planned if name not in ran]

    @property
    def verdict(self) -> str:
        """What all steps came to. A step that was not run has not passed."""
        told = (("FAILED", self.failed), ("NOT RUN", self.not_run))
        return "; ".join(f"{text}: {', '.join(names)}" for text, names in told if names) or "passed"

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both files; return their paths. A reader never sees half of one."""
        values = {
            "created": self.created,
            "passed": self.verdict == "passed",
            "failed": self.failed,
            "not_run": self.not_run,
            "gpu": dict(self.gpu),
            "versions": dict(self.versions),
            "steps": [outcome.as_json() for outcome in self.outcomes],
        }
        paths = folder / f"{name}.json", folder / f"{name}.md"
        for path, text in zip(paths, (json.dumps(values, indent=1) + "\n", self.text()), strict=True):
            draft = path.with_suffix(path.suffix + ".new")
            draft.write_text(text)
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
    ending = outcome.ending
    result = outcome.result + (f": {outcome.reason}" if outcome.reason else "")
    checks = f"{sum(check.result == OK for check in ending.checks)} of {len(ending.checks)}"
    cells = [outcome.step.name, result, checks, f"{ending.seconds:.1f}", outcome.step.what]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _details(outcome: Outcome) -> Iterator[str]:
    told = [check for check in outcome.ending.checks if check.figures or check.result != OK]
    tail = outcome.ending.tail[-25:] if outcome.result == FAILED else []
    if told or tail:
        yield from ("", f"## {outcome.step.name}: {outcome.result}", "")
        yield from map(_told, told)
    if tail:
        yield from ("", "```", *tail, "```")


def _told(check: Check) -> str:
    shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in check.figures.values())
    figures = ", ".join(f"{name} {value}" for name, value in zip(check.figures, shown, strict=True))
    wrong = "" if check.result == OK else f"{check.result}: {' '.join(check.detail.split())[:400]}"
    return f"- {check.check}: {', '.join(filter(None, (wrong, figures)))}"
