#!/usr/bin/env python3
"""Prints what each CUDA kernel needs of a multiprocessor, and fails if one spills registers.

From what `ptxas -v` printed when the sources were compiled: see keep_ptxas_report. A kernel's threads and the most
dynamic shared memory that it asks for are read from its name: run_pass<Pass, threads, shared bytes>, see
kernels/cuda/executor.cuh.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

WARP = 32
REGISTERS = 65536  # of a multiprocessor; given out to warps in units of 256
REGISTER_UNIT = 256
MAX_GROUPS = 32
MAX_THREADS = 2048
RESERVED_SHARED_BYTES = 1024  # the system's share of each group
# Shared memory of a multiprocessor: CUDA C++ Programming Guide, table of technical specifications. For others no
# occupancy is printed.
SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of one kernel for one architecture."""

    name: str
    arch: int
    threads: int
    registers: int
    spill_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int

    @property
    def occupancy(self) -> float | None:
        """Resident warps, as a share of the most that fit, when it asks for all the shared memory that it may."""
        if self.arch not in SHARED_BYTES:
            return None
        warps = -(-self.threads // WARP)
        registers_of_warp = -(-self.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = REGISTERS // registers_of_warp // warps
        shared = self.static_shared_bytes + self.dynamic_shared_bytes + RESERVED_SHARED_BYTES
        by_shared = SHARED_BYTES[self.arch] // shared
        groups = min(by_registers, by_shared, MAX_THREADS // self.threads, MAX_GROUPS)
        return groups * warps / (MAX_THREADS // WARP)


ENTRY = re.compile(
    r"Compiling entry function '(?P<symbol>\S+)' for 'sm_(?P<arch>\d+)[af]?'.*?"
    r"\d+ bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<used>[^\n]*)",
    re.DOTALL,
)


def demangle(symbols: list[str]) -> list[str]:
    """Return the C++ names of linker symbols."""
    done = subprocess.run(["c++filt"], input="\n".join(symbols), text=True, capture_output=True, check=True)
    return done.stdout.splitlines()


def parse(report: str) -> list[Kernel]:
    """Return the kernels in what `ptxas -v` printed."""
    entries = list(ENTRY.finditer(report))
    kernels = []
    for entry, signature in zip(entries, demangle([e["symbol"] for e in entries]), strict=True):
        # "... run_pass<isthmus::kernels::cuda::Pass<true>, 1024, 131072l>(...)"
        match = re.search(r"run_pass<(.*), (\d+), (\d+)l>\(", signature)
        name = match[1] if match else signature.partition("(isthmus")[0]
        shared = re.search(r"(\d+) bytes smem", entry["used"])
        kernels.append(
            Kernel(
                name=re.sub(r"isthmus::|kernels::|cuda::|\(anonymous namespace\)::", "", name),
                arch=int(entry["arch"]),
                threads=int(match[2]) if match else 1,
                registers=int(entry["registers"]),
                spill_bytes=int(entry["stores"]) + int(entry["loads"]),
                static_shared_bytes=int(shared[1]) if shared else 0,
                dynamic_shared_bytes=int(match[3]) if match else 0,
            )
        )
    return kernels


def print_table(kernels: list[Kernel]) -> None:
    """Print a line for each kernel, as Markdown."""
    architectures = sorted({k.arch for k in kernels})
    print(
        f"| kernel | threads | registers: sm_{', '.join(map(str, architectures))} | spills, bytes "
        "| shared, bytes: static + most dynamic | occupancy |"
    )
    print("|---|---|---|---|---|---|")
    for name in sorted({k.name for k in kernels}):
        row = sorted((k for k in kernels if k.name == name), key=lambda k: k.arch)
        columns = (
            f"`{name}`",
            str(row[0].threads),
            ", ".join(str(k.registers) for k in row),
            ", ".join(str(k.spill_bytes) for k in row) if any(k.spill_bytes for k in row) else "0",
            f"{max(k.static_shared_bytes for k in row)} + {row[0].dynamic_shared_bytes}",
            ", ".join("-" if k.occupancy is None else f"{k.occupancy:.0%}" for k in row),
        )
        print(f"| {' | '.join(columns)} |")


def main() -> int:
    """Return 1 if a kernel spills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path, help="files with what `ptxas -v` printed")
    kernels = []
    for path in parser.parse_args().reports:
        report = path.read_text()
        found = parse(report)
        if not found or len(found) != report.count("Compiling entry function"):
            sys.exit(f"{path}: {len(found)} kernels were understood in the report of ptxas")
        kernels += found
    kernels = list(dict.fromkeys(kernels))  # what several sources compile alike
    print_table(kernels)
    spilling = [f"{k.name} for sm_{k.arch}: {k.spill_bytes} bytes" for k in kernels if k.spill_bytes > 0]
    if spilling:
        print("registers are spilled by " + "; ".join(spilling), file=sys.stderr)
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
