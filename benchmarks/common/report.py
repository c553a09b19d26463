"""The head of all reports, with the machine and the versions behind them; and how they are written."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from isthmus.topology.discovery.sysfs import cpu_model


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
    """Processor, cores, memory and kernel."""
    return {
        "processor": cpu_model(Path("/proc/cpuinfo")) or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for package in ("isthmus", "torch", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
