"""A rank without torch, for tests of what launches ranks: echoes, and fails in every way on demand."""

import os
import signal
import sys
import time

from isthmus.benchmarks.simulate.serve import die_with_launcher, serve

RANK = int(os.environ["RANK"])


def echo(command, emit):
    emit({"saw": command["value"]})
    return {"rank": RANK, "value": command["value"], "nodes": os.environ["ISTHMUS_NODES"]}


def fail(command, emit):
    """Rank `rank` fails as told; the others notice a little later, as peers of a collective do."""
    if command["rank"] != RANK:
        if command.get("peers_wait"):
            time.sleep(60)
        time.sleep(0.2)
        raise ConnectionError("connection closed by peer")
    print("last words", file=sys.stderr, flush=True)
    if command["how"] == "raise":
        raise ValueError("the cause")
    if command["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if command["how"] == "exit":
        os._exit(7)
    raise AssertionError(command["how"])


if __name__ == "__main__":
    die_with_launcher()
    print("not an answer")
    serve({"echo": echo, "fail": fail})
