"""Runs a program, rank 1 of which is killed in its fourth step, once: killed_once.py MARKER PROGRAM ARGUMENT..."""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import isthmus

marker, program = map(Path, sys.argv[1:3])
sys.argv[:] = sys.argv[2:]
steps = 0


def count(*_: Any) -> None:
    global steps
    steps += 1
    print(f"gathers that crossed whole: {isthmus.stats()['weights']['whole']}", flush=True)
    if os.environ["RANK"] == "1" and steps == 4 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(count)
runpy.run_path(str(program), run_name="__main__")
