"""A rank without torch, for tests of what launches ranks: echoes, and fails in every way on demand."""

import os
import signal
import sys
import time

from isthmus.benchmarks.simulate.serve import SaysAll

RANK = int(os.environ["RANK"])


class Worker:
    def __init__(self):
        print("not an answer")

    def echo(self, emit, value):
        emit({"saw": value, "rank": RANK})
        return {"rank": RANK, "value": value, "nodes": os.environ["ISTHMUS_NODES"]}

    def fail(self, emit, rank, how, peers_wait=False):
        """Rank `rank` fails as told; the others notice a little later, as peers of a collective do."""
        if rank != RANK:
            if peers_wait:
                time.sleep(60)
            time.sleep(0.2)
            raise ConnectionError("connection closed by peer")
        print("last words", file=sys.stderr, flush=True)
        if how == "raise":
            raise ValueError("the cause")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "say all":
            raise SaysAll("the GPU is full")
        if how == "exit":
            os._exit(7)
        raise AssertionError(how)
