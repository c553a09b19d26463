"""Runs one program with a time limit, and leaves none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

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
    with log.open("w", errors="replace") as log_file:
        try:
            process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            ending.error = f"{command[0]}: {error.strerror}"
            return ending
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, log_file, ending), daemon=True)
        reader.start()
        try:
            ending.exit_code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            ending.timed_out = True
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                ending.exit_code = process.wait(timeout=GRACE_S)
        finally:
            _signal_group(process.pid, signal.SIGKILL)  # with whatever it left running
            ending.exit_code = process.wait()
            reader.join(GRACE_S)  # a process that left the group may hold the pipe open
    ending.seconds = time.monotonic() - start
    return ending


def _read(stream: IO[str], log_file: IO[str], ending: Ending) -> None:
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    for line in stream:
        with contextlib.suppress(ValueError):  # the log was closed: nobody waits for this line
            log_file.write(line)
            log_file.flush()
        check = parse(line)
        if check is None:
            tail.append(line.rstrip("\n"))
        else:
            ending.checks.append(check)
        ending.tail = list(tail)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
