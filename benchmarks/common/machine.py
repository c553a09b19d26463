"""The machine and the versions behind a report."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from isthmus.topology.discovery.sysfs import cpu_model


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
