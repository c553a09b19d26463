"""A step: one program, and what its ending means."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu.harness.execute import Ending
from gpu.harness.records import FAILED, NOT_RUN, OK


@dataclass(frozen=True)
class Verdict:
    """What a step came to, and why if it is not ok."""

    result: str
    reason: str = ""


def judge_end(ending: Ending) -> Verdict:
    """Judge a program by how it ended, and by the checks that it told of, if any."""
    failed = [check.check for check in ending.checks if check.result == FAILED]
    if ending.error:
        return Verdict(FAILED, ending.error)
    if ending.timed_out:
        return Verdict(FAILED, "did not end within its time limit")
    if ending.exit_code is not None and ending.exit_code < 0:
        return Verdict(FAILED, f"ended by {_signal_name(-ending.exit_code)}")
    if failed:
        return Verdict(FAILED, f"{len(failed)} of {len(ending.checks)} checks failed, first: {failed[0]}")
    if ending.exit_code != 0:
        return Verdict(FAILED, f"exit status {ending.exit_code}")
    return Verdict(OK)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def judge_checks(ending: Ending) -> Verdict:
    """Judge a program that tells of its checks, and exits with 0 if all are ok."""
    by_end = judge_end(ending)
    if by_end.result != OK:
        return by_end
    if not ending.checks:
        return Verdict(FAILED, "told of no check")
    if all(check.result == NOT_RUN for check in ending.checks):
        return Verdict(NOT_RUN, ending.checks[0].detail)
    return Verdict(OK)


Judge = Callable[[Ending], Verdict]


@dataclass(frozen=True)
class Step:
    """A program to run. missing: why it cannot be run here; empty: it can. least_s: with less it is not begun."""

    name: str
    what: str
    command: tuple[str, ...]
    limit_s: float
    judge: Judge = judge_checks
    env: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    least_s: float = 5


@dataclass(frozen=True)
class Outcome:
    """A step that was run, or was not."""

    step: Step
    verdict: Verdict
    ending: Ending = field(default_factory=Ending)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the report."""
        values: dict[str, Any] = {
            "name": self.step.name,
            "what": self.step.what,
            "result": self.verdict.result,
            "reason": self.verdict.reason,
            "seconds": round(self.ending.seconds, 2),
            "limit_s": self.step.limit_s,
            "command": list(self.step.command),
            "environment": dict(self.step.env),
            "exit_code": self.ending.exit_code,
            "checks": [vars(check) for check in self.ending.checks],
        }
        if self.verdict.result != OK:
            values["tail"] = self.ending.tail
        return values
