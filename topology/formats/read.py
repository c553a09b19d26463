"""Reads a recorded machine, in whichever of the known formats it is."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from isthmus.topology.machine import Machine, TopologyError, printable

#: The largest recorded machines (hundreds of processors, with all their caches, as hwloc XML) have 2 MB.
MOST_FILE_BYTES = 16 * 2**20

#: The version of the JSON that `isthmus topo --json` writes; a file without a number has this one.
SCHEMA = 1
#: The path that stands for standard input.
STANDARD_INPUT = "-"

#: What `isthmus topo --json` adds to a machine, and works out anew from it.
_DERIVED = ("rails", "node_map")

FORMATS = "hwloc XML, NCCL topology XML, `nvidia-smi topo -m` text, or the JSON that `isthmus topo --json` writes"


def read_machine(path: str | os.PathLike[str], most_bytes: int = MOST_FILE_BYTES) -> Machine:
    """The machine that a file, or with "-" standard input, describes; the contents tell the format.

    TopologyError: the file cannot be read, or is not one of a machine. It names the file, and the line where it can.
    """
    file = Path(path)
    name = "standard input" if str(file) == STANDARD_INPUT else file.name.partition(".")[0] or file.name
    try:
        return parse_machine(_read_bytes(file, most_bytes), printable(name))
    except TopologyError as error:
        raise TopologyError(error.what, file, error.line) from None


def parse_machine(data: bytes, name: str) -> Machine:
    """The machine that the contents of a file describe. name: of the machine, where the file gives it none."""
    text = _decode(data)
    start = text.lstrip()[:1]
    if not start:
        raise TopologyError(f"is empty: expected {FORMATS}")
    if start == "<":
        return _parse_xml(text, name)
    if start == "{":
        return _parse_json(text)
    from isthmus.topology.formats.smi_matrix import parse_smi_matrix

    return parse_smi_matrix(text, name)


def _read_bytes(file: Path, most_bytes: int) -> bytes:
    try:
        is_input = str(file) == STANDARD_INPUT
        with nullcontext(sys.stdin.buffer) if is_input else file.open("rb") as stream:
            data = stream.read(most_bytes + 1)
    except OSError as error:
        raise TopologyError(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL
        raise TopologyError(f"cannot be read: {error}") from None
    if len(data) > most_bytes:
        raise TopologyError(f"has more than {most_bytes} bytes: no machine needs that many")
    return data


def _decode(data: bytes) -> str:
    """UTF-8, or UTF-16 with a byte order mark, which is what PowerShell's > writes."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TopologyError(f"is not {encoding.upper().removesuffix('-SIG')} text: {error.reason}", line=line) from None
    if "\0" in text:
        raise TopologyError("is no text: it holds bytes of zero", line=text[: text.index("\0")].count("\n") + 1)
    return text


def _parse_xml(text: str, name: str) -> Machine:
    from isthmus.topology.formats.hwloc_xml import parse_hwloc_xml
    from isthmus.topology.formats.nccl_xml import parse_nccl_xml
    from isthmus.topology.formats.xml_text import line_of, parse_xml

    root = parse_xml(text)
    if root.tag == "system":
        return parse_nccl_xml(root, name)
    if root.tag == "topology":
        return parse_hwloc_xml(root, name)
    raise TopologyError(
        f"is XML with root <{str(root.tag)[:40]}>: expected <topology> (hwloc) or <system> (NCCL)", line=line_of(root)
    )


def _parse_json(text: str) -> Machine:
    from isthmus.topology.formats.machine_json import parse_machine_json

    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"is no JSON: {error.msg}", line=error.lineno) from None
    except (RecursionError, ValueError) as error:  # absurd nesting; a number of thousands of digits
        raise TopologyError(f"is no JSON of a machine: {type(error).__name__}") from None
    if isinstance(values, dict):
        if values.pop("schema", SCHEMA) != SCHEMA:
            raise TopologyError(f"has another schema than {SCHEMA}, the one that this isthmus reads")
        values = {name: value for name, value in values.items() if name not in _DERIVED}
    return parse_machine_json(values)
