"""python -m gpu.rehearsal --wire LIBRARY: processes one after another, as some settings cannot be changed in one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from gpu.harness.records import FAILED, NOT_RUN, Check

#: A process that has less than this left is not started.
LEAST_S = 20.0


@dataclass(frozen=True)
class Process:
    """One process: what it is called, its arguments, and its hardware queues (CUDA_DEVICE_MAX_CONNECTIONS)."""

    name: str
    arguments: tuple[str, ...] = ()
    connections: int = 8


#: The most telling first.
PROCESSES = (
    Process("2 nodes of 8"),
    Process("32 connections", ("--ways", "few"), 32),
    Process("lanes at 0", ("--ways", "few", "--lane-priority", "0")),
    Process("lanes at -1", ("--ways", "few", "--lane-priority", "-1")),
    Process("1 connection", ("--ways", "few"), 1),
    Process("8 nodes of 2", ("--ways", "few", "--nodes", "8x2")),
)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.rehearsal", description="Rehearse a step of FSDP2.")
    parser.add_argument("--wire", default="", metavar="LIBRARY", help="the rehearsal's NCCL (tests/gpu/wire), on a GPU")
    parser.add_argument("--device", choices=("cuda", "fake"), default="cuda", help="fake: numbers mean nothing")
    parser.add_argument("--short", action="store_true", help="the first process alone, and the last")
    options = parser.parse_args()
    if not options.wire and options.device == "cuda":
        parser.error("--wire names the library that make gpu-programs has built")
    deadline = time.monotonic() + float(os.environ.get("GPU_STEP_LIMIT_S", "3600"))
    processes = (PROCESSES[0], PROCESSES[-1]) if options.short else PROCESSES
    failed = False
    for process in processes:
        if deadline - time.monotonic() < LEAST_S:
            print(Check(process.name, NOT_RUN, detail="time was up").line(), flush=True)
            continue
        exit_code = run(process, options.wire, options.device)
        if exit_code < 0:
            print(Check(process.name, FAILED, detail=f"ended by signal {-exit_code}").line(), flush=True)
        failed = failed or exit_code != 0
    return int(failed)


def run(process: Process, wire: str, device: str) -> int:
    """Run a process; return its exit status."""
    preloaded, arguments = wire, list(process.arguments)
    if device == "fake":
        from support import fake_gpu

        preloaded = fake_gpu.libraries_with_wire()
        arguments.append("--fake")
    env = {
        **os.environ,
        "LD_PRELOAD": preloaded,
        "CUDA_DEVICE_MAX_CONNECTIONS": str(process.connections),
    }
    return subprocess.run([sys.executable, "-m", "gpu.rehearsal.rank", *arguments], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
