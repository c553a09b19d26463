"""Sources of C++ include each other one way alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Folders with sources. A folder includes itself and what stands in lines below its own; of a line with several, none
#: includes another. "*": all that have no line of their own.
ORDER = """
src/torch/module
src/torch/backend
src/torch/cuda
src/torch/sides
src/torch/works
src/torch/faults src/torch/units
src/torch/base
src
src/communicator
src/communicator/path
src/communicator/plan
src/communicator/units
src/communicator/run
src/transport
src/cuda
src/codec/*
src/codec
src/base
kernels
kernels/*
kernels/elementwise
kernels/cuda
kernels/block
topology
include/isthmus
"""
LINES = [line.split() for line in ORDER.split("\n") if line]
#: Where the compiler looks for what is included.
PLACES = ("include", "src", ".")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def line_of(folder: str) -> int | None:
    exact = [number for number, patterns in enumerate(LINES) if folder in patterns]
    by_glob = [n for n, patterns in enumerate(LINES) for pattern in patterns if fnmatchcase(folder, pattern)]
    return next(iter(exact + by_glob), None)


def sources(root: Path) -> list[Path]:
    folders = (root / name for name in ("include", "kernels", "src", "topology"))
    return [
        path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cpp", ".cu", ".cuh")
    ]


def included(root: Path) -> Iterator[tuple[str, str, str]]:
    """The folder of each source, that of what it includes, and both, for people."""
    for path in sources(root):
        for name in INCLUDE.findall(path.read_text()):
            found = [root / place / name for place in PLACES if (root / place / name).exists()]
            assert found, f"{path.relative_to(root)} includes {name}, which is not there"
            folders = [at.parent.relative_to(root).as_posix() for at in (path, found[0])]
            yield folders[0], folders[1], f"{path.relative_to(root)} includes {name}"


def against_order(root: Path) -> list[str]:
    found = []
    for folder, other, text in included(root):
        lines = line_of(folder), line_of(other)
        assert None not in lines, f"{text}: ORDER lacks {folder} or {other}"
        if folder != other and not lines[0] < lines[1]:  # type: ignore[operator]
            found.append(text)
    return found


def test_includes_point_one_way() -> None:
    assert not against_order(ROOT)


def test_each_line_has_sources() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in sources(ROOT)}
    for number, patterns in enumerate(LINES):
        for pattern in patterns:
            assert any(line_of(folder) == number and fnmatchcase(folder, pattern) for folder in folders), pattern
