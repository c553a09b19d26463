"""Files of recorded machines: and files that are none. See also tests/fuzz."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.topology.formats.read import parse_machine, read_machine
from isthmus.topology.machine import TopologyError

NCCL = '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("before", ["", "\n\n  "])
def test_the_contents_tell_a_machine(tmp_path: Path, encoding: str, before: str) -> None:
    path = tmp_path / "machine.dat"
    path.write_bytes((before + NCCL).encode(encoding))
    machine = read_machine(path)
    assert (machine.name, machine.source) == ("machine", "nccl xml")
    assert read_machine(str(path)) == machine


def test_a_declaration_of_another_encoding_and_comments_are_ignored() -> None:
    text = f'\n<?xml version="1.0"\n encoding="UTF-16"?>\n<!-- recorded -->\n<?note 1?>\n{NCCL}<!-- end -->\n'
    assert parse_machine(text.encode(), "test").gpus
    with pytest.raises(TopologyError) as caught:
        parse_machine(text.replace("0000:01:00.0", "here").encode(), "test")
    assert caught.value.line == 6


def refused(path: Path) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        read_machine(path)
    assert str(caught.value).startswith(str(path))
    return caught.value


BOMB = b'<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa">\n<!ENTITY b "&a;&a;&a;&a;&a;&a;">]>\n<system version="&b;"/>'


@pytest.mark.parametrize(
    ("contents", "line", "what"),
    [
        (b"\xef\xbb\xbf \n\t\n", None, "is empty: expected NCCL topology XML"),
        (b"\x7fELF\x02\x01\x01\0\0\0", None, "is no XML: expected NCCL"),
        (b"GPU0\nGPU1\n\xff\xfe", 3, "is not UTF-8 text"),
        (b"hello", None, "is no XML: expected NCCL"),
        (b"<", 1, "is no well-formed XML"),
        (b"\n<system>\n<cpu>\n</system>", 4, "is no well-formed XML: mismatched tag"),
        (NCCL[:-9].encode(), 1, "is no well-formed XML"),
        (b'<system version="1" version="2"/>', 1, "is no well-formed XML"),
        (b"<html/>", 1, "is XML with root <html>: expected NCCL topology XML"),
        (b'<topology version="2.0"/>', 1, "is XML with root <topology>: expected NCCL topology XML"),
        (BOMB, 1, "declares XML entities"),
        (b'<system version="1">&other;</system>', 1, "is no well-formed XML"),
        (b"{}", None, "is no XML: expected NCCL"),
    ],
)
def test_files_without_a_machine(tmp_path: Path, contents: bytes, line: int | None, what: str) -> None:
    path = tmp_path / "machine.xml"
    path.write_bytes(contents)
    error = refused(path)
    assert what in error.what
    assert line is None or error.line == line


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(tmp_path / "missing").what
    assert "cannot be read: Is a directory" in refused(tmp_path).what
