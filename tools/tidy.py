"""Runs clang-tidy over the C++ of src, kernels and topology that a build folder compiles for the host, files at a time.

Usage: tidy.py BUILD_FOLDER [JOBS]. Exit code 1 if it finds anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# How far the analyzer looks into a function. By default it is 225,000: many branches take half a minute.
MAX_NODES = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=50000"]


def as_unified_sources(folder: Path) -> Path:
    """Return a folder with the compile commands, in which batches that CMake has made bear the name of WebKit's.

    The analyzer leaves alone what a file includes, but for sources in a file that is called so.
    """
    tidy_folder = folder / "tidy"
    tidy_folder.mkdir(exist_ok=True)
    text = (folder / "compile_commands.json").read_text()
    for path in {Path(command["file"]) for command in json.loads(text)}:
        if "Unity" in path.parts and {"src", "topology"} & set(path.relative_to(folder).parts):
            named = tidy_folder / f"UnifiedSource-{path.parent.parent.stem}-{path.name}"
            named.write_text(path.read_text())
            text = text.replace(str(path), str(named))
    (tidy_folder / "compile_commands.json").write_text(text)
    return tidy_folder


def sources(folder: Path) -> list[Path]:
    """Return what the folder compiles, those first that take longest: several files in one."""
    paths = {Path(command["file"]) for command in json.loads((folder / "compile_commands.json").read_text())}
    batches = sorted(path for path in paths if path.parent == folder)
    own = sorted(path for path in paths for name in ("src", "kernels", "topology") if path.is_relative_to(ROOT / name))
    return [*batches, *(path for path in own if path.suffix == ".cpp")]


def tidy(path: Path, folder: Path, headers: str) -> tuple[int, str]:
    """Return the exit code, and what was said, of one file."""
    start = time.monotonic()
    arguments = [f"--extra-arg={argument}" for argument in (f"-isystem{headers}", *MAX_NODES)]
    command = ["clang-tidy", "--quiet", *arguments, "-p", str(folder), str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    said = process.stdout if process.returncode == 0 else process.stdout + process.stderr
    return process.returncode, f"{time.monotonic() - start:6.1f} s  {path.relative_to(ROOT)}\n{said}"


def main() -> int:
    """Return the exit code."""
    folder = as_unified_sources(Path(sys.argv[1]).resolve())
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
    # clang's own wheel has no headers of a compiler.
    asked = subprocess.run(["c++", "-print-file-name=include"], capture_output=True, text=True, check=True)
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda path: tidy(path, folder, asked.stdout.strip()), sources(folder))
        codes = []
        for code, said in results:
            print(said, end="", flush=True)
            codes.append(code)
    return int(not codes or any(codes))


if __name__ == "__main__":
    sys.exit(main())
