"""Reads a recorded machine, in whichever of the known formats it is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from isthmus.topology.machine import Machine, TopologyError, printable

#: The version of the JSON that `isthmus topo --json` writes; a file without a number has this one.
SCHEMA = 1
#: The path that stands for standard input.
STANDARD_INPUT = "-"

FORMATS = "NCCL topology XML, or the JSON that `isthmus topo --json` writes"


def read_machine(path: str | os.PathLike[str]) -> Machine:
    """The machine that a file, or with "-" standard input, describes; the contents tell the format.

    TopologyError: the file cannot be read, or is not one of a machine. It names the file, and the line where it can.
    """
    file = Path(path)
    is_input = str(file) == STANDARD_INPUT
    name = "standard input" if is_input else file.name.partition(".")[0] or file.name
    try:
        return parse_machine(sys.stdin.buffer.read() if is_input else file.read_bytes(), printable(name))
    except OSError as error:
        raise TopologyError(f"cannot be read: {error.strerror or error}", file) from None
    except TopologyError as error:
        raise TopologyError(error.what, file, error.line) from None


def parse_machine(data: bytes, name: str) -> Machine:
    """The machine that the contents of a file describe. name: of the machine, where the file gives it none."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TopologyError(f"is not UTF-8 text: {error.reason}", line=line) from None
    start = text.lstrip()[:1]
    if not start:
        raise TopologyError(f"is empty: expected {FORMATS}")
    if start == "<":
        return _parse_xml(text, name)
    if start == "{":
        return _parse_json(text)
    raise TopologyError(f"is neither XML nor JSON: expected {FORMATS}")


def _parse_xml(text: str, name: str) -> Machine:
    from isthmus.topology.formats.nccl_xml import parse_nccl_xml
    from isthmus.topology.formats.xml_text import parse_xml

    root = parse_xml(text)
    if root.tag == "system":
        return parse_nccl_xml(root, name)
    of_hwloc = " of hwloc" if root.tag == "topology" else ""
    raise TopologyError(f"is XML{of_hwloc} with root <{str(root.tag)[:40]}>: expected {FORMATS}", line=root.line)


def _parse_json(text: str) -> Machine:
    from isthmus.topology.formats.machine_json import parse_machine_json

    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"is no JSON: {error.msg}", line=error.lineno) from None
    except (RecursionError, ValueError) as error:  # absurd nesting; a number of thousands of digits
        raise TopologyError(f"is no JSON of a machine: {type(error).__name__}") from None
    if isinstance(values, dict) and values.get("schema", SCHEMA) != SCHEMA:
        raise TopologyError(f"has another schema than {SCHEMA}, the one that this isthmus reads")
    return parse_machine_json(values)
