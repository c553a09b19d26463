"""The report: a JSON file with everything, and a short text for people. Written anew after each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu.harness.records import FAILED, NOT_RUN, OK, Check
from gpu.harness.steps import Outcome

SCHEMA = 1


@dataclass
class Report:
    """What was done so far. planned: names of all steps, so that a report shows which ones it lacks."""

    gpu: Mapping[str, Any]
    versions: Mapping[str, Any]
    planned: list[str] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Names of steps that were planned and not even tried."""
        done = {outcome.step.name for outcome in self.outcomes}
        return [name for name in self.planned if name not in done]

    @property
    def passed(self) -> bool:
        """Whether every step was reached and none failed. What was not run for a reason of the machine is listed."""
        return not self.missing and all(outcome.verdict.result != FAILED for outcome in self.outcomes)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": SCHEMA,
            "created": self.created,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "gpu": dict(self.gpu),
            "versions": dict(self.versions),
            "not_reached": self.missing,
            "steps": [outcome.as_json() for outcome in self.outcomes],
        }

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both files; return their paths. A reader never sees half of one."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / f"{name}.json", folder / f"{name}.md"
        texts = json.dumps(self.as_json(), indent=1) + "\n", self.text()
        for path, text in zip(paths, texts, strict=True):
            draft = path.with_suffix(path.suffix + ".new")
            draft.write_text(text)
            draft.replace(path)
        return paths

    def text(self) -> str:
        """Return the short text, as Markdown."""
        lines = [f"# Isthmus on {self.gpu.get('name', 'no GPU')}", "", self._headline(), ""]
        versions = {name: value for name, value in self.versions.items() if value is not None}
        lines += [", ".join(f"{name} {value}" for name, value in versions.items()), ""]
        lines += ["| step | result | checks | seconds | what |", "|---|---|---|---|---|"]
        lines += [_row(outcome) for outcome in self.outcomes]
        lines += [f"| {name} | not reached | | | |" for name in self.missing]
        for outcome in self.outcomes:
            lines += _figures(outcome)
        for outcome in self.outcomes:
            lines += _failures(outcome)
        return "\n".join(lines) + "\n"

    def _headline(self) -> str:
        names = {
            result: [outcome.step.name for outcome in self.outcomes if outcome.verdict.result == result]
            for result in (FAILED, NOT_RUN)
        }
        checks = [check for outcome in self.outcomes for check in outcome.ending.checks]
        good = sum(check.result == OK for check in checks)
        parts = [f"{'Passed' if self.passed else 'FAILED'}: {good} of {len(checks)} checks ok, {self.seconds:.0f} s"]
        parts += [f"{result}: {', '.join(steps)}" for result, steps in names.items() if steps]
        parts += [f"not reached: {', '.join(self.missing)}"] if self.missing else []
        return "; ".join(parts) + f". {self.created}."


def _row(outcome: Outcome) -> str:
    verdict = outcome.verdict
    result = verdict.result + (f": {verdict.reason}" if verdict.reason else "")
    good = sum(check.result == OK for check in outcome.ending.checks)
    checks = f"{good} of {len(outcome.ending.checks)}"
    cells = [outcome.step.name, result, checks, f"{outcome.ending.seconds:.1f}", outcome.step.what]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _figures(outcome: Outcome) -> list[str]:
    """Tables of what was measured: one for each set of columns."""
    tables: dict[tuple[str, ...], list[Check]] = {}
    for check in outcome.ending.checks:
        if check.figures:
            tables.setdefault(tuple(check.figures), []).append(check)
    lines: list[str] = []
    for columns, checks in tables.items():
        lines += ["", f"| {outcome.step.name} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        lines += [_figure_row(check) for check in checks]
    return lines


def _figure_row(check: Check) -> str:
    cells = [check.check, *(_short(value) for value in check.figures.values())]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _failures(outcome: Outcome) -> list[str]:
    told: list[Check] = [check for check in outcome.ending.checks if check.result != OK]
    if not told and outcome.verdict.result != FAILED:
        return []
    lines = ["", f"## {outcome.step.name}: {outcome.verdict.result}", ""]
    lines += [f"- {check.check}: {check.result}: {' '.join(check.detail.split())[:400]}" for check in told]
    if outcome.verdict.result == FAILED and outcome.ending.tail:
        lines += ["", "```", *outcome.ending.tail[-25:], "```"]
    return lines
