"""python -m gpu.harness.perf PROGRAM: isthmus_perf over NCCL, four processes on one GPU; its rows become checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu.harness import shared_gpu
from gpu.harness.records import FAILED, OK, Check

NUM_RANKS = 4
SIZES = ("-b", "64K", "-e", "16M", "-f", "16")
KINDS = ("-d", "float32,bfloat16", "-t", "two")
SWEEP = ("--nodes", "2x2", *SIZES, *KINDS, "-n", "5", "-w", "2", "--timeout-ms", "30000")


def main(program: str) -> int:
    """Return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "perf.json"
        processes = [start(program, rank, Path(folder), report) for rank in range(NUM_RANKS)]
        codes = [process.wait() for process in processes]  # whoever started this limits its time
        rows = json.loads(report.read_text())["results"] if report.exists() else []
    for row in rows:
        print(check_of(row).line(), flush=True)
    if any(codes):
        print(Check("all ranks end", FAILED, detail=f"exit statuses of the ranks: {codes}").line())
    return int(any(codes) or not rows or any(row["num_wrong"] for row in rows))


def start(program: str, rank: int, folder: Path, report: Path) -> subprocess.Popen[bytes]:
    """Start one rank. Its NCCL is torch's: CMake takes that one."""
    place = ["--transport", "nccl", "--ranks", str(NUM_RANKS), "--rank", str(rank), "--gpu", "0"]
    output = ["--id-file", str(folder / "id"), *(["--json", str(report)] if rank == 0 else [])]
    return subprocess.Popen([program, *place, *output, *SWEEP], env={**os.environ, **shared_gpu.of_rank(rank)})


def check_of(row: dict[str, Any]) -> Check:
    """Return what one row of its report says. Times of processes that take turns on a GPU are no speed of NCCL."""
    wrong = row["num_wrong"]
    name = f"{row['operation']}, {row['dtype']}, codec {row['codec']}, {row['bytes']} bytes"
    figures = {"us": 1e6 * row["time_s"], "bytes that leave a node": row["inter_bytes_per_node"], "wrong": wrong}
    return Check(name, FAILED if wrong else OK, detail=f"{wrong} elements are wrong" if wrong else "", figures=figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
