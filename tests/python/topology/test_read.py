"""Files of recorded machines: which format they are, and files that are none. See also tests/fuzz."""

from __future__ import annotations

import json
import random
import re
from importlib import import_module
from pathlib import Path

import pytest

from isthmus.topology.formats.machine_json import parse_machine_json
from isthmus.topology.formats.read import parse_machine, read_machine
from isthmus.topology.machine import TopologyError
from machines import goldens

NCCL = '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'
HWLOC = '<topology version="2.0"><object type="Machine"/></topology>'
MATRIX = "     GPU0 GPU1\nGPU0  X   SYS\nGPU1 SYS   X\n"
JSON = '{"name": "by hand", "source": "json"}'


@pytest.mark.parametrize(
    ("text", "source"),
    [(NCCL, "nccl xml"), (HWLOC, "hwloc xml"), (MATRIX, "nvidia-smi topo -m"), (JSON, "json")],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("before", ["", "\n\n  "])
def test_the_format_is_told_from_the_contents(
    tmp_path: Path, text: str, source: str, encoding: str, before: str
) -> None:
    path = tmp_path / "machine.dat"
    path.write_bytes((before + text).encode(encoding))
    machine = read_machine(path)
    assert machine.source == source
    assert machine.name == ("by hand" if source == "json" else "machine")
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
    assert caught.value.file == str(path)
    assert str(path) in str(caught.value)
    return caught.value


BOMB = '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa">\n<!ENTITY b "&a;&a;&a;&a;&a;&a;">]>\n<system version="&b;"/>'


@pytest.mark.parametrize(
    ("contents", "line", "what"),
    [
        (b"", None, "is empty: expected hwloc XML"),
        (b" \n\t\n", None, "is empty"),
        (b"\xef\xbb\xbf", None, "is empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0", 1, "is no text: it holds bytes of zero"),
        (bytes(range(256)), 2, "is not UTF-8 text"),
        (b"GPU0\nGPU1\n\xff\xfe", 3, "is not UTF-8 text"),
        ("<system>\ngr\u00f6\u00dfer".encode("latin-1"), 2, "is not UTF-8 text"),
        (b"\xff\xfe<", 1, "is not UTF-16 text"),
        (b"hello", None, "holds no matrix"),
        (b"<", 1, "is no well-formed XML"),
        (b"<system>\n<cpu>\n</system>", 3, "is no well-formed XML"),
        (NCCL[:-9].encode(), 1, "is no well-formed XML"),
        (b"<system>\n" * 3, None, "is no well-formed XML"),
        (b'<system version="1" version="2"/>', 1, "is no well-formed XML"),
        (b"<html/>", 1, "is XML with root <html>: expected <topology> (hwloc) or <system> (NCCL)"),
        (b'<graphs version="1"/>', 1, "is XML with root <graphs>"),
        (b'<system xmlns="urn:other"/>', 1, "is XML with root <{urn:other}system>"),
        (BOMB.encode(), 1, "declares XML entities"),
        (BOMB.encode("utf-16"), 1, "declares XML entities"),
        (b'<!DOCTYPE system SYSTEM "file:///etc/passwd">\n<system version="1">&other;</system>', 2, "entity"),
        (b'<system version="1">&other;</system>', 1, "is no well-formed XML"),
        (b"{", 1, "is no JSON"),
        (b'{\n"name": "a",\n}', 3, "is no JSON"),
        (b"{}", None, "machine: 'name' is missing"),
        (b'{"name": "a", "source": "b", "nics": 9e999}', None, "machine.nics is inf"),
        (b'{"name": ' + b"[" * 100_000, None, "is no JSON of a machine: RecursionError"),
        (b'{"name": ' + b"9" * 5000 + b"}", None, "is no JSON of a machine: ValueError"),
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
    with pytest.raises(TopologyError, match="cannot be read"):
        read_machine("a\0b")


def test_the_limit_of_size(tmp_path: Path) -> None:
    path = tmp_path / "machine.xml"
    path.write_text(NCCL)
    assert read_machine(path, most_bytes=len(NCCL)).gpus
    with pytest.raises(TopologyError, match=f"has more than {len(NCCL) - 1} bytes"):
        read_machine(path, most_bytes=len(NCCL) - 1)
    with pytest.raises(TopologyError, match="has more than 16777216 bytes"):
        read_machine("/dev/zero")


@pytest.mark.parametrize("path", goldens.recorded(), ids=lambda path: path.name)
def test_damaged_files_give_errors_with_a_reason(path: Path) -> None:
    """Cut, with lines left out or doubled, and with characters changed: never anything but an error or a machine."""
    whole, choose = path.read_bytes(), random.Random(7)
    lines = whole.splitlines(keepends=True)
    for _ in range(20):
        place = choose.randrange(len(lines))
        position = choose.randrange(len(whole))
        for damaged in (
            whole[:position],
            b"".join(lines[:place] + lines[place + 1 :]),
            b"".join(lines[:place] + lines[place:][:1] + lines[place:]),
            whole[:position] + bytes([choose.randrange(256)]) + whole[position + 1 :],
        ):
            try:
                machine = parse_machine(damaged, "test")
            except TopologyError as error:
                assert error.what and (error.line is None or error.line >= 1)
            else:
                assert parse_machine_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_the_documented_limits_are_those_of_the_code() -> None:
    document = (goldens.ROOT / "docs" / "topology.md").read_text()
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|((?: `[\w.]+\.MOST_\w+`,?)+) \|$", document, re.MULTILINE)
    assert len(rows) == 8
    for values, names in rows:
        unit = 2**20 if "MiB" in values else 1
        numbers = {int(number.replace(",", "")) * unit for number in re.findall(r"\d[\d,]*\b", values)}
        limits = re.findall(r"`([\w.]+)\.(MOST_\w+)`", names)
        assert numbers == {getattr(import_module(f"isthmus.topology.{module}"), name) for module, name in limits}
