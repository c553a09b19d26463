"""Counts the files and functions of Isthmus that a gradient enters on the CPU, from FSDP2's call to the first addition.

It is a gradient of FSDP2 by name, in its third step, on 2 nodes x 2 ranks, with default options. C++ is what a debug
build (build/counted) enters with -finstrument-functions, Python what sys.setprofile sees. Functions of one line and
members that the compiler writes do not count, and lambdas count as the function around them.

Usage: python tools/count_path.py [--list]    The first time it builds, for minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "counted"
LAST = "isthmus::add("
# An editable install keeps the path of its folder; a clone may be called isthmus, and hold torch.
PACKAGES = tuple(f"{ROOT / folder}/" for folder in ("python/isthmus", "benchmarks"))

# Notes each function once, in the order in which they are first entered on any thread, until `last` is entered.
HOOKS = """
#include <stdatomic.h>
enum { kSize = 1 << 14 };
static _Atomic(void*) slots[kSize];
void* entered[kSize];
atomic_int num_entered, counts;
void* last;
void __cyg_profile_func_exit(void* function, void* site) {}
void __cyg_profile_func_enter(void* function, void* site) {
  if (!counts) return;
  for (unsigned long i = (unsigned long)function >> 2;; ++i) {
    void* found = 0;
    if (atomic_compare_exchange_strong(&slots[i % kSize], &found, function)) {
      entered[num_entered++] = function;
      break;
    }
    if (found == function) break;
  }
  if (function == last) counts = 0;
}
"""


def build() -> Path:
    """Build the module and the hooks; return the hooks' library."""
    exclude = "-finstrument-functions-exclude-file-list=/usr/,/site-packages/,/include/python"
    subprocess.run(
        [
            *("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DISTHMUS_BUILD_PYTHON=ON"),
            *("-DISTHMUS_BUILD_CUDA=OFF", "-DISTHMUS_MPI=OFF", f"-DPython_EXECUTABLE={sys.executable}"),
            f"-DCMAKE_CXX_FLAGS_DEBUG=-g1 -DNDEBUG -finstrument-functions {exclude}",  # torch's checks are for its own
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", BUILD, "--target", "_C"], check=True, stdout=sys.stderr)
    source, library = BUILD / "hooks.c", BUILD / "hooks.so"
    source.write_text(HOOKS)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def module() -> Path:
    """Return the native module that counts."""
    (found,) = BUILD.rglob("_C.*.so")
    return found


# --- One rank ---


def count_on(rank: int, store: str) -> None:
    """Train; on rank 0, print what the third step's first reduction enters."""
    spec = importlib.util.spec_from_file_location("isthmus._C", module())
    assert spec is not None and spec.loader is not None
    import torch  # the module needs its libraries

    sys.modules["isthmus._C"] = core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    import isthmus

    isthmus._C = core
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("isthmus", init_method=f"file://{store}", rank=rank, world_size=4)
    model = torch.nn.Sequential(*(fully_shard(torch.nn.Linear(256, 256)) for _ in range(2)))
    fully_shard(model)
    entered: dict[tuple[str, str], None] = {}
    hooks: Any = ctypes.CDLL(None)
    counts = ctypes.c_int.in_dll(hooks, "counts")
    ctypes.c_void_p.in_dll(hooks, "last").value = address_of(LAST)

    def follow(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "foreach_reduce" and event == "call":
            counts.value = True
        elif code.co_name == "foreach_reduce" and event == "return":
            sys.setprofile(None)
        elif event == "call" and counts.value and code.co_filename.startswith(PACKAGES):
            name = code.co_qualname.replace("<locals>.", "")
            entered[str(Path(code.co_filename).resolve().relative_to(ROOT)), re.sub(r"\.<\w+>$", "", name)] = None

    for step in range(3):
        if step == 2 and rank == 0:
            loss = model(torch.randn(8, 256)).sum()
            sys.setprofile(follow)
        else:
            loss = model(torch.randn(8, 256)).sum()
        loss.backward()
    if rank == 0:
        number = ctypes.c_int.in_dll(hooks, "num_entered").value
        addresses = (ctypes.c_void_p * number).in_dll(hooks, "entered")
        for file, function in [*entered, *functions_at([int(address or 0) for address in addresses])]:
            print(file, function, sep="\t")
    dist.barrier()
    dist.destroy_process_group()


def base() -> int:
    """Return where the module is in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(module())):
            return int(line.split("-")[0], 16)
    raise RuntimeError(f"{module()} is not loaded")


def address_of(name: str) -> int:
    """Return the address of the only function that is called so."""
    symbols = subprocess.run(["nm", "-C", module()], check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in symbols.splitlines() if line.split(maxsplit=2)[-1].startswith(name))
    return base() + int(line.split()[0], 16)


def functions_at(addresses: list[int]) -> Iterator[tuple[str, str]]:
    """Yield file and name of the functions that someone wrote."""
    offset = base()
    command = ["addr2line", "-Cfe", str(module()), *(hex(address - offset) for address in addresses)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for name, place in zip(lines[::2], lines[1::2], strict=True):
        file, line = place.split(" (")[0].rsplit(":", 1)
        if not line.isdigit():
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(ROOT):
            raise RuntimeError(f"{path} is not in {ROOT}: the compiler's cache gave what another folder compiled")
        text = path.read_text().splitlines()[int(line) - 1].partition("//")[0].rstrip()
        is_one_line = "{" in text and text.endswith("}")
        if is_one_line or re.match(r"\s*(struct|class|union|template)\b", text) or "= default" in text:
            continue
        if not name.startswith(("TLS ", "__tls")):
            yield str(path.relative_to(ROOT)), plain_name(name)


def plain_name(name: str) -> str:
    """Return the name of a function without arguments: of itself, of its template, and of lambdas in it."""
    name = re.sub(r"::\{lambda.*|\[abi:\w+\]|\(anonymous namespace\)::", "", name)
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = shorter
    return re.split(r"[<(]", name.removesuffix(" const"))[0].split(" ")[-1].removeprefix("isthmus::")


# --- All ranks ---


def main() -> None:
    """Run four ranks, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each function, by file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        count_on(arguments.rank, arguments.store)
        return
    hooks = build()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LD_PRELOAD": str(hooks), "ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "error"}
        command = [sys.executable, __file__, "--store", f"{folder}/store", "--rank"]
        ranks = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
            for rank in range(4)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("count_path: a rank failed")
    by_file: dict[str, list[str]] = {}
    for file, function in dict.fromkeys(tuple(line.split("\t")) for line in outputs[0].splitlines()):
        by_file.setdefault(file, []).append(function)
    for file, functions in by_file.items() if arguments.list else ():
        print(f"{file}: {', '.join(functions)}")
    print(f"{len(by_file)} files, {sum(map(len, by_file.values()))} functions")


if __name__ == "__main__":
    main()
