"""What this machine is: GPU, driver, torch, and which sources these are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpu.build import REPOSITORY

# In a process of its own: what is broken in a driver breaks no more than this.
_ASK_TORCH = """
import json, platform, torch
said = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
if torch.distributed.is_nccl_available():
    said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    said["gpu"] = {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }
print(json.dumps(said))
"""


def ask_torch(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what torch sees. Where it cannot be asked: {"error": why}."""
    alone = {**env, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # isthmus may not be built yet
    said = _output([sys.executable, "-c", _ASK_TORCH], alone)
    values: dict[str, Any] = json.loads(said.splitlines()[-1]) if said else {"error": "torch did not answer"}
    return values


def versions(torch_said: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return all versions; null for what could not be found out."""
    nvcc = _output(["nvcc", "--version"], env)
    return {
        **commit(),
        "driver": _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"], env),
        "nvcc": nvcc and nvcc.splitlines()[-1],
        **{name: value for name, value in torch_said.items() if name != "gpu"},
    }


def commit() -> dict[str, Any]:
    """Return what git says of the sources; null where there is none."""
    git = ["git", "-C", str(REPOSITORY)]
    changes = _output([*git, "status", "--porcelain", "--untracked-files=no"], os.environ)
    return {
        "commit": _output([*git, "rev-parse", "HEAD"], os.environ),
        "changed_files": None if changes is None else len(changes.splitlines()),
    }


def _output(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
