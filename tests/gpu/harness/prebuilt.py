"""What was built elsewhere, in one folder: what it was built of and for, and whether that is what is here."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu.harness.build import REPOSITORY

MANIFEST = "manifest.json"
#: What programs and Python files are made of.
_SOURCES = ("CMakeLists.txt", "cmake", "include", "kernels", "src", "python", "topology", "benchmarks", "tests/gpu")
_SUFFIXES = (".cmake", ".h", ".cpp", ".cu", ".cuh", ".in", ".py")


def why_unfit(folder: Path, torch_said: Mapping[str, Any]) -> str:
    """Return why a prebuilt folder is not for this machine or not of these sources; "" if it is."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"{folder / MANIFEST}: {error}"
    here = {
        "sources": digest(),
        "python": python_version(),
        "torch": torch_said.get("torch"),
        "cuda": torch_said.get("cuda"),
    }
    differing = [
        f"{name} {manifest.get(name)}, here {value}" for name, value in here.items() if value != manifest.get(name)
    ]
    capability = str(torch_said.get("gpu", {}).get("capability", "")).replace(".", "")
    architectures = manifest.get("architectures", [])  # as CMake names them: "90"
    if capability and capability not in architectures:
        differing.append(f"GPUs {', '.join(architectures)}, here {capability}")
    glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0").split()[-1]
    if version_numbers(glibc) < version_numbers(manifest.get("glibc", "0")):
        differing.append(f"glibc {manifest['glibc']} and newer, here {glibc}")
    return f"built of or for {'; '.join(differing)}" if differing else ""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return (2, 34) of "2.34"."""
    return tuple(map(int, version.split(".")))


def python_version() -> str:
    """Return "3.12": modules are for one such version."""
    return ".".join(platform.python_version_tuple()[:2])


def digest() -> str:
    """Return what differs if any source does."""
    total = hashlib.sha256()
    for top in map(REPOSITORY.joinpath, _SOURCES):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            is_source = path.name.endswith(("CMakeLists.txt", *_SUFFIXES)) and path.is_file()
            if is_source and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(REPOSITORY)}\0".encode())
                total.update(path.read_bytes())
    return total.hexdigest()[:16]
