"""python -m gpu.pack BUILD OUTPUT: put what steps run into one folder, to be carried to a machine with a GPU.

BUILD is CMake's folder of an installation into this Python. Torch, CUDA's driver and NCCL are found there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu import build as how
from gpu import machine
from gpu.build import REPOSITORY, Places, built_program

PROGRAMS = ("test_device_cuda", "bench_cuda")
#: What makes simulated nodes and shapes their links, for machines that lack it.
TOOLS = ("ip", "tc")
#: Runs a tool with the libraries that lie beside it, which no other program shall find.
_TOOL = (
    '#!/bin/sh\nd=$(dirname "$0")/tools; LD_LIBRARY_PATH=$d${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$d/%s" "$@"\n'
)
_GLIBC = re.compile(r"(ld-linux|lib(c|m|dl|pthread|resolv|rt))[.-]")
_NOT_PYTHON = shutil.ignore_patterns("*.cpp", "*.h", "*.cu", "CMakeLists.txt", "machines", "__pycache__", "*.so")
MIB = 1 << 20


def main() -> int:
    """Return the exit status: 1 where the folder is larger than the limit."""
    parser = argparse.ArgumentParser(prog="python -m gpu.pack")
    parser.add_argument("build", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--limit-mib", type=float, default=56, help="64 may be carried, sources among them")
    options = parser.parse_args()
    shutil.rmtree(options.output, ignore_errors=True)
    pack(options.build, options.output)
    return report_size(options.output, options.limit_mib)


def pack(build: Path, output: Path) -> None:
    """Fill an empty folder."""
    places = Places(build=build, prebuilt=output)
    site = places.site / "isthmus"
    shutil.copytree(REPOSITORY / "python/isthmus", site, ignore=_NOT_PYTHON)
    run("cmake", "--install", str(build), "--prefix", str(places.site), "--strip")
    for path in site.glob("_mpi.*.so"):
        path.unlink()
    for path in site.glob("_topology.*.so"):
        for library in ("libhwloc", "libexpat"):
            shutil.copy2(library_of(path, library), site)  # beside it, where it is looked for
    programs = output / "programs"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy2(built_program(build, name), programs)
        run("strip", "--strip-unneeded", str(programs / name))
    # C++'s library, too: that of an older system lacks what these programs need.
    for library in ("libcudart", r"libstdc\+\+", "libgcc_s"):
        shutil.copy2(library_of(built_program(build, "test_device_cuda"), library), programs)
    pack_tools(programs)
    manifest = manifest_of(build) | {"glibc": glibc_of(output)}
    (output / how.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def pack_tools(programs: Path) -> None:
    """Put `TOOLS` beside the programs, with all libraries but those of glibc. They may lack here, too."""
    (programs / "tools").mkdir()
    for name in TOOLS:
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if found is None:
            print(f"not packed: {name} is not installed here")
            continue
        shutil.copy2(found, programs / "tools" / name)
        for library in re.findall(r"=> (/\S+)", run("ldd", found)):
            if not _GLIBC.match(Path(library).name):
                shutil.copy2(library, programs / "tools")
        (programs / name).write_text(_TOOL % name)
        (programs / name).chmod(0o755)


def run(*command: str) -> str:
    """Run a command; return what it says."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def library_of(program: Path, name: str) -> Path:
    """Return the library that a program loads by that name, a pattern."""
    found = re.search(rf"{name}\S* => (\S+)", run("ldd", str(program)))
    if not found:
        raise RuntimeError(f"{program} loads no {name}")
    return Path(found[1])


def glibc_of(folder: Path) -> str:
    """Return the lowest version of glibc with which all binaries in a folder run: "2.34"."""
    binaries = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    said = "".join(run("readelf", "--version-info", "--wide", str(path)) for path in binaries)
    return max(re.findall(r"GLIBC_(\d+\.\d+)", said), key=how.version_numbers)


def manifest_of(build: Path) -> dict[str, Any]:
    """Return what was built, and of what: for why_unfit, and for people the commit."""
    import torch

    architectures = re.search(r"^CMAKE_CUDA_ARCHITECTURES:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    return {
        **machine.commit(),
        "sources": how.digest(),
        "python": how.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "architectures": architectures[1].split(";") if architectures else [],
    }


def report_size(folder: Path, limit_mib: float) -> int:
    """Say how large the folder is; return 1 if that is too much."""
    total_mib = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MIB
    print(f"{total_mib:.1f} MiB  {folder}, of at most {limit_mib:g}")
    return int(total_mib > limit_mib)


if __name__ == "__main__":
    sys.exit(main())
