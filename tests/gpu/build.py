"""How everything is built: one installation into a folder, with the programs of checks and benchmarks beside it.

What was built elsewhere, in one folder, says what it was built of and for (`why_unfit`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFEST = "manifest.json"
#: What programs and Python files are made of.
_SOURCES = (
    "CMakeLists.txt",
    "cmake",
    "include",
    "kernels",
    "src",
    "python",
    "topology",
    "benchmarks",
    "tests/gpu",
    "tests/cpp/gpu/device",
)
_SUFFIXES = (".cmake", ".h", ".cpp", ".cu", ".cuh", ".in", ".py")


@dataclass(frozen=True)
class Places:
    """Where the build puts things. prebuilt: a folder that pack.py made, which is used instead."""

    build: Path
    prebuilt: Path | None = None

    @property
    def native(self) -> Path:
        """CMake's folder."""
        return self.build / "native"

    @property
    def site(self) -> Path:
        """What goes into PYTHONPATH."""
        return (self.prebuilt or self.build) / "site"

    @property
    def logs(self) -> Path:
        """What the steps printed."""
        return self.build / "logs"

    def program(self, name: str) -> Path:
        """Return where a program or library is once it is built, if it is."""
        if self.prebuilt:
            return self.prebuilt / "programs" / name
        return built_program(self.native, name)


def built_program(native: Path, name: str) -> Path:
    """Return where CMake puts a program or library."""
    return native / "tests/gpu" / name


def install_command(places: Places, architecture: str) -> list[str]:
    """Return the command that compiles everything and installs isthmus. Needs no network and no package index."""
    settings = {
        "build-dir": str(places.native),
        "cmake.build-type": "Release",
        "cmake.define.ISTHMUS_BUILD_CUDA": "ON",
        "cmake.define.CMAKE_CUDA_ARCHITECTURES": architecture,
        "cmake.define.ISTHMUS_MPI": "OFF",
        "build.verbose": "false",
    }
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--no-deps", "--no-index", "--upgrade", "--target", str(places.site)]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    return [*command, str(REPOSITORY)]


def environment(places: Places, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of all programs: the installed isthmus first, no setting of Isthmus from outside."""
    clean = {name: value for name, value in given.items() if not name.startswith("ISTHMUS_")}
    paths = [str(path) for path in (places.site, REPOSITORY / "tests", given.get("PYTHONPATH", "")) if str(path)]
    carried = [str(places.prebuilt / "programs")] if places.prebuilt else []
    libraries = carried + ([given["LD_LIBRARY_PATH"]] if given.get("LD_LIBRARY_PATH") else [])
    jobs = given.get("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    return clean | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        **({"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else {}),
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        "PATH": os.pathsep.join([given.get("PATH", ""), "/usr/local/cuda/bin", *carried]),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }


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
