"""Reads a recorded machine: the file that NCCL dumps, or that a cloud hands out for it."""

from __future__ import annotations

import os
from pathlib import Path

from isthmus.topology.formats.nccl_xml import parse_nccl_xml
from isthmus.topology.formats.xml_text import parse_xml
from isthmus.topology.machine import Machine, TopologyError, printable

_EXPECTED = "expected NCCL topology XML, as NCCL_TOPO_DUMP_FILE gets it"


def read_machine(path: str | os.PathLike[str]) -> Machine:
    """The machine that a file describes.

    TopologyError: the file cannot be read, or is not one of a machine. It names the file, and the line where it can.
    """
    file = Path(path)
    try:
        return parse_machine(file.read_bytes(), printable(file.name.partition(".")[0] or file.name))
    except OSError as error:
        raise TopologyError(f"cannot be read: {error.strerror or error}", file) from None
    except TopologyError as error:
        raise TopologyError(error.what, file, error.line) from None


def parse_machine(data: bytes, name: str) -> Machine:
    """The machine that the contents of a file describe. name: of the machine, which the file does not have."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TopologyError(f"is not UTF-8 text: {error.reason}", line=line) from None
    if not text.lstrip().startswith("<"):
        raise TopologyError(f"is {'no XML' if text.strip() else 'empty'}: {_EXPECTED}")
    root = parse_xml(text)
    if root.tag != "system":
        raise TopologyError(f"is XML with root <{root.tag[:40]}>: {_EXPECTED}", line=root.line)
    return parse_nccl_xml(root, name)
