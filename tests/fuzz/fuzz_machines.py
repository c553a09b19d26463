"""Fuzzes one of the readers of machine files: an input is a machine or a TopologyError, never anything else.

Run by tests/fuzz/run.py with the reader's name and libFuzzer's flags. atheris counts branches of Python code, not
those of libxml2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

# An editable installation imports through a finder of its own, whose modules atheris cannot instrument.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

with atheris.instrument_imports(include=["isthmus"]):
    from isthmus.topology.formats import read
    from isthmus.topology.formats.machine_json import parse_machine_json
    from isthmus.topology.formats.nccl_xml import parse_nccl_xml
    from isthmus.topology.formats.xml_text import parse_xml
    from isthmus.topology.machine import Machine, TopologyError, farness

Parse = Callable[[str], Machine]


def fuzz(parse: Parse) -> None:
    """Let libFuzzer call `parse` until it has enough."""

    def one_input(data: bytes) -> None:
        try:
            machine = parse(data.decode(errors="replace"))
        except TopologyError as error:
            assert error.what and (error.line is None or error.line >= 1), error
        else:
            check(machine)

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


def check(machine: Machine) -> None:
    """What holds of every machine that a reader gives."""
    assert parse_machine_json(json.loads(json.dumps(machine.to_json()))) == machine
    for link in machine.links:
        assert machine.distance(link.b, link.a) == link.kind
        assert farness(link.kind) > 0
        assert link.speed_gbit_s is None or link.speed_gbit_s > 0


#: Whatever the root is called; whatever the text begins with; any format, our own JSON above all.
READERS: dict[str, Parse] = {
    "nccl_xml": lambda text: parse_nccl_xml(parse_xml(text), "fuzzed"),
    "machine_file": lambda text: read.parse_machine(text.encode(errors="surrogatepass"), "fuzzed"),
}

if __name__ == "__main__":
    fuzz(READERS[sys.argv.pop(1)])
