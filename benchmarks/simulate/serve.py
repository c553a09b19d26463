"""The loop of a rank: takes commands as JSON lines on stdin, answers on a pipe. See `RankWorld` for the other end."""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Emit = Callable[[dict[str, Any]], None]
Handler = Callable[[dict[str, Any], Emit], dict[str, Any]]

_PR_SET_PDEATHSIG = 1


class SaysAll(RuntimeError):
    """A failure whose message is all that a user needs: what the rank printed is not shown."""


def die_with_launcher() -> None:
    """Let the kernel kill this process when its launcher ends for any reason. Call this first."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = os.environ.get("ISTHMUS_LAUNCHER_PID")
    if launcher is not None and os.getppid() != int(launcher):
        sys.exit("the launcher ended before this rank began")


def serve(handlers: dict[str, Handler]) -> None:
    """Answer commands {"do": name, ...} by `handlers` until "exit" or the end of stdin.

    A handler returns its answer and may emit events before. An exception ends the process: it is reported to the
    launcher with the time at which it came, so that the first of several failing ranks can be told from its victims.
    """
    answers = os.fdopen(int(os.environ["ISTHMUS_ANSWER_FD"]), "w", buffering=1)

    def emit(kind: str, content: dict[str, Any]) -> None:
        answers.write(json.dumps({"kind": kind, **content}) + "\n")

    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "exit":
            break
        try:
            answer = handlers[command["do"]](command, lambda event: emit("event", event))
        except BaseException as error:
            failed_at_s = time.monotonic()
            traceback.print_exc()
            sys.stderr.flush()
            says_all = isinstance(error, SaysAll)
            text = str(error) if says_all else f"{type(error).__name__}: {error}"
            emit("failure", {"failed_at_s": failed_at_s, "error": text, "says_all": says_all})
            os._exit(1)  # process groups in an unknown state must not be waited for
        emit("answer", answer)
