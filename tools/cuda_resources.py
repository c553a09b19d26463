#!/usr/bin/env python3
"""Prints what each CUDA kernel needs of a multiprocessor, and fails if one spills registers or waits for each load.

From what `ptxas -v` printed when the sources were compiled: see keep_ptxas_report. A kernel's threads and the most
dynamic shared memory that it asks for are read from its name: run_pass<Pass, threads, shared bytes>, see
kernels/cuda/executor.cuh. Loads in flight are counted in the machine code for sm_90: the most loads from global memory
that a thread has issued before an instruction uses one of them.
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

WARP = 32
REGISTERS = 65536  # of a multiprocessor; given out to warps in units of 256
REGISTER_UNIT = 256
MAX_GROUPS = 32
# The fewest loads in flight of the kernels that take most of a reduction's time, by the beginnings of their names.
LEAST_LOADS = {"DequantizeBlocks": 24, "OfEachPiece<QuantizeBlocks": 12, "OfEachPiece<AddAndMark": 16}
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


# "... run_pass<isthmus::kernels::cuda::Pass<true>, 1024, 131072l>(...)"
RUN_PASS = re.compile(r"run_pass<(.*), (\d+), (\d+)l>\(")


def short_name(signature: str) -> str:
    """Return the name of a kernel's pass, or of the kernel itself, without namespaces."""
    match = RUN_PASS.search(signature)
    name = match[1] if match else signature.partition("(isthmus")[0]
    return re.sub(r"isthmus::|kernels::|cuda::|\(anonymous namespace\)::", "", name)


def demangle(symbols: list[str]) -> list[str]:
    """Return the C++ names of linker symbols."""
    done = subprocess.run(["c++filt"], input="\n".join(symbols), text=True, capture_output=True, check=True)
    return done.stdout.splitlines()


def parse(report: str) -> list[Kernel]:
    """Return the kernels in what `ptxas -v` printed."""
    entries = list(ENTRY.finditer(report))
    kernels = []
    for entry, signature in zip(entries, demangle([e["symbol"] for e in entries]), strict=True):
        match = RUN_PASS.search(signature)
        shared = re.search(r"(\d+) bytes smem", entry["used"])
        kernels.append(
            Kernel(
                name=short_name(signature),
                arch=int(entry["arch"]),
                threads=int(match[2]) if match else 1,
                registers=int(entry["registers"]),
                spill_bytes=int(entry["stores"]) + int(entry["loads"]),
                static_shared_bytes=int(shared[1]) if shared else 0,
                dynamic_shared_bytes=int(match[3]) if match else 0,
            )
        )
    return kernels


FUNCTION = re.compile(r"Function : (\S+)")
# "/*0470*/ @!P0 LDG.E.64 R6, [R4.64+0x8] ;": the guard, the operation, and its operands.
INSTRUCTION = re.compile(r"\s/\*[0-9a-f]{4,5}\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*?)\s*;")
REGISTER = re.compile(r"\bR(\d+)(\.64)?")
LEAVES = ("BRA", "EXIT", "RET")  # code behind one of these, unguarded, is another path's


def count_loads(machine_code: str) -> dict[str, int]:
    """Return the loads in flight of each kernel, by its symbol, in what `cuobjdump -sass` printed."""
    most: dict[str, int] = {}
    symbol = ""
    loads: dict[int, int] = {}  # by register, the load that fills it
    for number, line in enumerate(machine_code.splitlines()):
        if found := FUNCTION.search(line):
            symbol, loads = found[1], {}
            most[symbol] = 0
        if not (instruction := INSTRUCTION.search(line)):
            continue
        guard, operation, operands = instruction.groups()
        filled, _, sources = operands.partition(",") if operation.startswith("LDG") else ("", "", operands)
        used = {int(r) + high for r, wide in REGISTER.findall(sources) for high in range(2 if wide else 1)}
        if used & loads.keys() or (not guard and operation.split(".")[0] in LEAVES):
            loads = {}
        if filled:
            words = 4 if ".128" in operation else 2 if ".64" in operation else 1
            loads |= {int(r) + word: number for r, _ in REGISTER.findall(filled) for word in range(words)}
            most[symbol] = max(most[symbol], len(set(loads.values())))
    return most


def print_table(kernels: list[Kernel], loads: dict[str, int]) -> None:
    """Print a line for each kernel, as Markdown. loads: those in flight, by name."""
    architectures = sorted({k.arch for k in kernels})
    print(
        f"| kernel | threads | registers: sm_{', '.join(map(str, architectures))} | spills, bytes "
        "| shared, bytes: static + most dynamic | occupancy | loads in flight |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in sorted({k.name for k in kernels}):
        row = sorted((k for k in kernels if k.name == name), key=lambda k: k.arch)
        columns = (
            f"`{name}`",
            str(row[0].threads),
            ", ".join(str(k.registers) for k in row),
            ", ".join(str(k.spill_bytes) for k in row) if any(k.spill_bytes for k in row) else "0",
            f"{max(k.static_shared_bytes for k in row)} + {row[0].dynamic_shared_bytes}",
            ", ".join("-" if k.occupancy is None else f"{k.occupancy:.0%}" for k in row),
            str(loads.get(name, "-")),
        )
        print(f"| {' | '.join(columns)} |")


def loads_of_object(disassembler: Path, path: Path) -> dict[str, int]:
    """Return the loads in flight of an object's kernels, by name."""
    command = [disassembler, "-arch", "sm_90", "-sass", path]
    # It calls nvdisasm, which lies beside it.
    environment = os.environ | {"PATH": f"{disassembler.parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True, env=environment)
    counts = count_loads(done.stdout)
    return dict(zip(map(short_name, demangle(list(counts))), counts.values(), strict=True))


def main() -> int:
    """Return 1 if a kernel spills, or has too few loads in flight."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path, help="what `ptxas -v` printed: OBJECT.ptxas, beside OBJECT")
    parser.add_argument("--disassembler", type=Path, help="CUDA's cuobjdump; without it no loads are counted")
    arguments = parser.parse_args()
    kernels = []
    loads: dict[str, int] = {}
    for path in arguments.reports:
        report = path.read_text()
        found = parse(report)
        if not found or len(found) != report.count("Compiling entry function"):
            sys.exit(f"{path}: {len(found)} kernels were understood in the report of ptxas")
        kernels += found
        if arguments.disassembler and any(k.arch == 90 for k in found):
            loads |= loads_of_object(arguments.disassembler, path.with_suffix(""))
    kernels = list(dict.fromkeys(kernels))  # what several sources compile alike
    print_table(kernels, loads)
    faults = [f"{k.name} for sm_{k.arch} spills {k.spill_bytes} bytes" for k in kernels if k.spill_bytes > 0]
    for name, least in LEAST_LOADS.items():
        few = {kernel: count for kernel, count in loads.items() if kernel.startswith(name) and count < least}
        faults += [f"{kernel} has {count} loads in flight, fewer than {least}" for kernel, count in few.items()]
    if faults:
        print("; ".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
