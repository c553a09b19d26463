"""A program with a time limit, and what its ending means. None of its processes outlives it.

It tells of its checks as GoogleTest does, or by a line of JSON each, among whatever else it prints:

{"check": "tagc, 1025 elements", "result": "ok", "seconds": 0.2, "detail": "", "figures": {"GB/s": 1234.5}}
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK = "ok"
FAILED = "failed"
NOT_RUN = "not run"

#: Between asking a program to end and ending it.
GRACE_S = 5.0
#: With this status compute-sanitizer ends where it found something: no program of ours does.
FOUND_SOMETHING = 99
SANITIZER = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
# What it prints where the machine does not let it look at the GPU.
_REFUSALS = ("Device not supported", "Unable to find injection library", "Failed to initialize", "not supported on")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?).*")
# GoogleTest's.
_BEGUN = "[ RUN      ] "
_ENDED = re.compile(r"\[ *(OK|FAILED|SKIPPED) *\] (.*) \((\d+) ms\)$")
_RESULTS = {"OK": OK, "FAILED": FAILED, "SKIPPED": NOT_RUN}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. detail: why it failed or was not run. figures: what was measured."""

    check: str
    result: str
    seconds: float = 0
    detail: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the line that tells of it."""
        return json.dumps(asdict(self))


@dataclass
class Ending:
    """How a program ended. exit_code: negative for a signal, None where it could not be started."""

    exit_code: int | None
    timed_out: bool
    checks: list[Check]
    lines: list[str]  # that tell of no check


Verdict = tuple[str, str]  # what a program came to, and why if it is not ok


def judge(ending: Ending, is_sanitized: bool = False) -> Verdict:
    """Judge a program by how it ended and by its checks, and before these by what compute-sanitizer found."""
    refusals = [line for line in ending.lines if any(text in line for text in _REFUSALS)]
    summaries = [match for line in ending.lines if (match := _SUMMARY.search(line))]
    failed = [check.check for check in ending.checks if check.result == FAILED]
    if is_sanitized and refusals:
        return NOT_RUN, f"compute-sanitizer does not run here: {refusals[0].lstrip('= ')}"
    if is_sanitized and any(int(match[1]) > 0 for match in summaries):
        return FAILED, summaries[0][0]
    if ending.timed_out:
        return FAILED, "did not end within its time limit"
    if failed:
        return FAILED, f"{len(failed)} of {len(ending.checks)} checks failed, first: {failed[0]}"
    if ending.exit_code != 0:
        return FAILED, f"exit status {ending.exit_code}"
    if not ending.checks:
        return FAILED, "told of no check"
    if is_sanitized and not summaries:
        return FAILED, "compute-sanitizer gave no summary"
    if all(check.result == NOT_RUN for check in ending.checks):
        return NOT_RUN, ending.checks[0].detail
    return OK, ""


def execute(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, limit_s: float, log: Path) -> Ending:
    """Run a program in a process group of its own; both of its streams go to `log`, a new file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    timed_out = False
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env={**env, "GPU_STEP_LIMIT_S": str(limit_s)},
                cwd=cwd,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            return Ending(None, False, [], [f"{command[0]}: {error.strerror}"])
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            _signal_group(process.pid, signal.SIGKILL)  # with whatever it left running
            exit_code = process.wait()
    told = list(parse(log.read_text(errors="replace").splitlines()))
    checks = [what for what in told if isinstance(what, Check)]
    return Ending(exit_code, timed_out, checks, [what for what in told if isinstance(what, str)])


def parse(lines: Sequence[str]) -> Iterator[Check | str]:
    """Return what a program printed: its checks, and all other lines as they are."""
    begun, printed = "", list[str]()  # the test of GoogleTest that runs, and what it printed
    for line in lines:
        if line.startswith('{"check":'):
            yield _check(line)
        elif line.startswith(_BEGUN):
            begun, printed = line.removeprefix(_BEGUN), []
        elif (ended := _ENDED.match(line)) and begun:
            yield Check(ended[2], _RESULTS[ended[1]], int(ended[3]) / 1000, "\n".join(printed))
            begun = ""
        else:
            printed.append(line)
            yield line
    if begun:
        yield Check(begun, FAILED, detail="it did not end")


def _check(line: str) -> Check:
    try:
        check = Check(**json.loads(line))
        if check.result in _RESULTS.values():
            return check
    except (json.JSONDecodeError, TypeError):
        pass
    return Check("a record", FAILED, detail=f"not a record of a check: {line.strip()[:200]}")


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
