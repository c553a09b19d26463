"""The loop of a rank: carries out what its launcher asks for. See `RankWorld` for the other end."""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

Emit = Callable[[dict[str, Any]], None]

_PR_SET_PDEATHSIG = 1


class SaysAll(RuntimeError):
    """A failure whose message is all that a user needs: what the rank printed is not shown."""


def serve(module: str, descriptor: int, launcher: int) -> None:
    """Carry out requests (name, arguments) until the launcher closes its end of the connection at `descriptor`.

    The method of `module.Worker()` with that name gets what emits events, and the arguments; it returns the answer. An
    exception ends the process: it is reported with the time at which it came, so that the first of several failing
    ranks can be told from its victims. The kernel ends the process when its launcher ends for any reason.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        sys.exit("the launcher ended before this rank began")
    worker = import_module(module).Worker()
    connection = Connection(descriptor)
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(worker, name)(lambda event: connection.send(("event", event)), **arguments)
        except BaseException as error:
            failed_at_s = time.monotonic()
            traceback.print_exc()
            sys.stderr.flush()
            says_all = isinstance(error, SaysAll)
            text = str(error) if says_all else f"{type(error).__name__}: {error}"
            connection.send(("failure", {"failed_at_s": failed_at_s, "error": text, "says_all": says_all}))
            os._exit(1)  # process groups in an unknown state must not be waited for
        connection.send(("answer", answer))
