"""The head of all reports, with the machine and the versions behind them; and how they are written."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from isthmus.base import native
from isthmus.report.info import package_versions


def report_head(**of_machine: Any) -> dict[str, Any]:
    """Schema, time, versions and machine. of_machine: further facts about it, such as its load before the run."""
    return {
        "schema": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine() | of_machine,
    }


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write the report, and make its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Processor, cores, the instruction set of the CPU's loops, memory and kernel."""
    return {
        "processor": _cpu_model() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_set": native.load().INSTRUCTION_SET,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
    }


def in_words(found: dict[str, Any]) -> str:
    """What stands beside each figure of a `machine()`."""
    return f"{found['cores']} cores of {found['processor']}, {found['instruction_set']}"


def print_machine(console: Console) -> None:
    """Print the first line of a benchmark."""
    console.print(in_words(machine()), highlight=False)


def _cpu_model() -> str:
    """The processor's marketing name; "" where Linux does not say it."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    # x86, POWER; Arm names its parts by number only.
    return next(
        (line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() in ("model name", "cpu")), ""
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    return {"python": platform.python_version()} | package_versions()
