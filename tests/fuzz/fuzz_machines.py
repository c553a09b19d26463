"""Fuzzes the reader of machine files: an input is a machine or a TopologyError, never anything else.

Run by tests/fuzz/run.py with the target's name and libFuzzer's flags. atheris counts branches of Python code, not
those of expat.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

TESTS = Path(__file__).resolve().parents[1]
# An editable installation imports through a finder of its own, whose modules atheris cannot instrument.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path[:0] = [str(TESTS.parent / "python"), str(TESTS)]

with atheris.instrument_imports(include=["isthmus"]):
    from isthmus.topology.formats.read import parse_machine
    from isthmus.topology.machine import TopologyError
    from machines import checks


def one_input(data: bytes) -> None:
    """Whatever the text begins with, and whatever its root is called."""
    try:
        machine = parse_machine(data, "fuzzed")
    except TopologyError as error:
        assert error.what and (error.line is None or error.line >= 1), error
    else:
        checks.check(machine)


if __name__ == "__main__":
    sys.argv.pop(1)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
