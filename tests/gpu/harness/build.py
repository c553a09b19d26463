"""How everything is built: one installation into a folder, with the programs of checks and benchmarks beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


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
