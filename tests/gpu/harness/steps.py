"""A step: one program with a time limit, and what its ending means. None of its processes outlives it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu.harness.records import FAILED, NOT_RUN, OK, Check, parse

TAIL_LINES = 60
#: Between asking a program to end and ending it.
GRACE_S = 5.0
#: With this status compute-sanitizer ends where it found something: no program of ours does.
FOUND_SOMETHING = 99
SANITIZER = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
# What it prints where the machine does not let it look at the GPU.
_REFUSALS = ("Device not supported", "Unable to find injection library", "Failed to initialize", "not supported on")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?).*")


@dataclass
class Ending:
    """How a program ended. exit_code: negative for a signal, None where it could not be started."""

    seconds: float = 0
    exit_code: int | None = None
    timed_out: bool = False
    checks: list[Check] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)  # its last lines, without records


Verdict = tuple[str, str]  # what a step came to, and why if it is not ok


def judge_end(ending: Ending) -> Verdict:
    """Judge a program by how it ended, and by the checks that it told of, if any."""
    failed = [check.check for check in ending.checks if check.result == FAILED]
    if ending.timed_out:
        return FAILED, "did not end within its time limit"
    if failed:
        return FAILED, f"{len(failed)} of {len(ending.checks)} checks failed, first: {failed[0]}"
    return (OK, "") if ending.exit_code == 0 else (FAILED, f"exit status {ending.exit_code}")


def judge_checks(ending: Ending) -> Verdict:
    """Judge a program that tells of its checks, and exits with 0 if all are ok."""
    result, reason = judge_end(ending)
    if result == OK and not ending.checks:
        return FAILED, "told of no check"
    if result == OK and all(check.result == NOT_RUN for check in ending.checks):
        return NOT_RUN, ending.checks[0].detail
    return result, reason


def judge_sanitized(ending: Ending) -> Verdict:
    """Judge a program that ran under compute-sanitizer: what that found first, then the program's own checks."""
    refusals = [line for line in ending.tail if any(text in line for text in _REFUSALS)]
    summaries = [match for line in ending.tail if (match := _SUMMARY.search(line))]
    if refusals:
        return NOT_RUN, f"compute-sanitizer does not run here: {refusals[0].lstrip('= ')}"
    if any(int(match[1]) > 0 for match in summaries):
        return FAILED, summaries[0][0]
    own = judge_checks(ending)
    return own if summaries or own[0] != OK else (FAILED, "compute-sanitizer gave no summary")


@dataclass(frozen=True)
class Step:
    """A program to run. missing: why it cannot be run here; empty: it can. least_s: with less it is not begun."""

    name: str
    what: str
    command: tuple[str, ...]
    limit_s: float
    judge: Callable[[Ending], Verdict] = judge_checks
    env: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    least_s: float = 5


@dataclass(frozen=True)
class Outcome:
    """A step that was run, or was not."""

    step: Step
    result: str
    reason: str = ""
    ending: Ending = field(default_factory=Ending)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the report."""
        step = {name: value for name, value in vars(self.step).items() if name != "judge"}
        ending = asdict(self.ending) | ({"tail": []} if self.result == OK else {})  # the logs have it
        return {**step, "result": self.result, "reason": self.reason, **ending}


def execute(step: Step, *, env: Mapping[str, str], cwd: Path, limit_s: float, log: Path) -> Ending:
    """Run a step in a process group of its own; both of its streams go to `log`, a new file."""
    start = time.monotonic()
    ending = Ending()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                step.command,
                env={**env, **step.env, "GPU_STEP_LIMIT_S": str(limit_s)},
                cwd=cwd,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            return Ending(tail=[f"{step.command[0]}: {error.strerror}"])
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            ending.timed_out = True
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            _signal_group(process.pid, signal.SIGKILL)  # with whatever it left running
            ending.exit_code = process.wait()
    for line in log.read_text(errors="replace").splitlines():
        check = parse(line)
        if check is None:
            ending.tail = [*ending.tail[1 - TAIL_LINES :], line]
        else:
            ending.checks.append(check)
    ending.seconds = time.monotonic() - start
    return ending


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
