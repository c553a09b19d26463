"""Runs one program with a time limit, and leaves none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu.harness.records import Check, parse

TAIL_LINES = 60
#: Between asking a program to end and ending it.
GRACE_S = 5.0


@dataclass
class Ending:
    """How a program ended. exit_code: negative for a signal, None where it could not be started."""

    seconds: float = 0
    exit_code: int | None = None
    timed_out: bool = False
    checks: list[Check] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)  # its last lines, without records
    error: str = ""  # why it could not be started


def execute(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, limit_s: float, log: Path) -> Ending:
    """Run a command in a process group of its own; both of its streams go to `log`, a new file."""
    start = time.monotonic()
    ending = Ending()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            process = subprocess.Popen(command, env=dict(env), cwd=cwd, start_new_session=True, **streams)  # type: ignore[call-overload]
        except OSError as error:
            return Ending(error=f"{command[0]}: {error.strerror}")
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
