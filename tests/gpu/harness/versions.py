"""What this machine is: GPU, driver, libraries, and which sources were built."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# In a process of its own: what is broken in a driver breaks no more than this.
_ASK_TORCH = """
import json, torch
available = torch.cuda.is_available()
said = {"torch": torch.__version__, "cuda_of_torch": torch.version.cuda, "available": available}
if torch.distributed.is_nccl_available():
    said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
if available:
    properties = torch.cuda.get_device_properties(0)
    said["gpu"] = {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }
    said["cuda_of_driver"] = torch._C._cuda_getDriverVersion()
print(json.dumps(said))
"""


def ask_torch(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what torch sees. Where it cannot be asked: {"error": why}."""
    alone = {**env, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # isthmus may not be built yet
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], env=alone, capture_output=True, text=True, timeout=120, check=False
        )
        values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "torch did not answer within 120 s"}
    except (IndexError, json.JSONDecodeError):
        return {"error": " ".join(done.stderr.splitlines()[-1:]) or f"torch ended with {done.returncode}"}
    return values


def collect(repository: Path, torch_said: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return all versions; null for what could not be found out."""
    nvcc = _output(["nvcc", "--version"], env) or ""
    release = re.search(r"release [\d.]+, V([\d.]+)", nvcc)
    return {
        **commit_of(repository),
        "driver": _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"], env),
        "nvcc": release[1] if release else None,
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: torch_said.get(name) for name in ("torch", "cuda_of_torch", "cuda_of_driver", "nccl")},
    }


def commit_of(repository: Path) -> dict[str, Any]:
    """Return what git says of a repository; null where there is none."""
    changes = _output(["git", "-C", str(repository), "status", "--porcelain", "--untracked-files=no"], os.environ)
    return {
        "commit": _output(["git", "-C", str(repository), "rev-parse", "HEAD"], os.environ),
        "changed_files": None if changes is None else len(changes.splitlines()),
    }


def _output(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def slug(gpu_name: str) -> str:
    """Return a name of the GPU that fits a file name: "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-") or "unknown"
