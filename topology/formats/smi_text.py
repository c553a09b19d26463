"""Finds the matrix that `nvidia-smi topo -m` prints in pasted text.

The text may have tabs or spaces, merged columns, escape codes of a terminal, marks of a comment or a quotation, a
prompt before and a legend after the matrix, and may lack the columns of CPU and NUMA affinity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from isthmus.topology.draft import Notes
from isthmus.topology.machine import MOST_GPUS, MOST_NICS, TopologyError

#: Bonded between two GPUs; today's have 18. A larger number is the next column, run together with this one.
MOST_NVLINKS = 36
#: Places in a text where a matrix may begin.
_MOST_MATRICES = 16
_ESCAPE_CODE = re.compile(r"(?:\x1b|\u241b|\\033|\\x1b|\\e|\^\[)?\[[0-9;]{0,16}m|\x1b\[[0-9;?]{0,16}[A-Za-z]")
_MARKS_BEFORE = re.compile(r"^[\s*#>/]+")
_COLUMN = re.compile(
    r"\s*(?:(?P<affinity>CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID|NUMA(?!\w))"
    r"|(?P<numbered>GPU|NIC)(?P<number>\d{1,4})"
    r"|(?P<named>mlx\d_(?:bond_?)?\d{1,4}|[A-Za-z][\w.:-]{0,62}))",
    re.IGNORECASE | re.ASCII,
)
_CELL = re.compile(r"\s*(X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC)", re.ASCII)
_NIC_LEGEND = re.compile(r"NIC(\d{1,4})\s*[:=]\s*([A-Za-z][\w.:-]{0,62})", re.ASCII)


@dataclass(frozen=True)
class SmiMatrix:
    """A whole matrix: symmetric, X on the diagonal only.

    devices: names of columns; GPUs and numbered NICs as "GPU0" and "NIC0". cells: a row for each of them, in the order
    of `devices`. affinities: the first word of the names of further columns ("CPU", "NUMA", "GPU"); behind: what stands
    there, by device. run_together: the names of those columns were, and so may be what stands below them. legend: names
    of numbered NICs.
    """

    devices: tuple[str, ...]
    cells: dict[str, list[str]]
    lines: dict[str, int]
    affinities: tuple[str, ...]
    run_together: bool
    behind: dict[str, list[str]]
    legend: dict[str, str]

    def distance(self, a: str, b: str) -> str:
        """Between two devices, by name."""
        return self.cells[a][self._place_of[b]]

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {device: place for place, device in enumerate(self.devices)}


def is_gpu(device: str) -> bool:
    """Whether a column is that of a GPU."""
    return re.fullmatch(r"GPU\d+", device) is not None


def find_matrix(text: str, notes: Notes) -> SmiMatrix:
    """The first whole matrix in a text. TopologyError: there is none; it says why not."""
    lines = [_clean(line) for line in text.splitlines()]
    first_error = None
    for header in _headers(lines):
        try:
            return _Reader(lines, header).matrix(notes)
        except TopologyError as error:
            first_error = first_error or error
    raise first_error or TopologyError(
        "holds no matrix as `nvidia-smi topo -m` prints it: no line with GPU0, GPU1, ... and rows below it"
    )


def _clean(line: str) -> str:
    line = _ESCAPE_CODE.sub("", line).replace("\u00a0", " ").replace("|", " ")
    return _MARKS_BEFORE.sub("", line).rstrip()


def _headers(lines: Sequence[str]) -> Iterator[int]:
    """Places of the lines right above a row of a GPU: those that should name the columns."""
    found, above = 0, None
    above_is_row = False
    for place, line in enumerate(lines):
        if not line:
            continue
        label = _label(line)
        is_row = label is not None and is_gpu(label[0])
        if is_row and not above_is_row:
            if above is None:
                raise TopologyError("the matrix has no line that names its columns", line=place + 1)
            yield above
            found += 1
            if found == _MOST_MATRICES:
                return
        above, above_is_row = place, is_row


def _label(line: str) -> tuple[str, int] | None:
    """The device whose row a line is, and where its name ends; None: the line is no row."""
    match = _COLUMN.match(line)
    if not match or match["affinity"] or not _CELL.match(line, match.end()):
        return None
    return _name(match), match.end()


def _name(column: re.Match[str]) -> str:
    return f"{column['numbered'].upper()}{int(column['number'])}" if column["numbered"] else column["named"]


@dataclass
class _Row:
    line: int
    cells: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


class _Reader:
    """Reads the matrix below one header."""

    def __init__(self, lines: Sequence[str], header: int) -> None:
        self._header_line = header + 1
        self._devices: list[str] = []
        self._affinities: list[str] = []
        self._rows: dict[str, _Row] = {}
        self._legend: dict[str, str] = {}
        self._read_header(lines[header])
        self._run_together = re.search(r"Affinity\S", lines[header], re.IGNORECASE) is not None
        last_row_line = self._read_rows(lines, header + 1)
        if missing := [device for device in self._devices if device not in self._rows]:
            raise TopologyError(f"the matrix is cut off: row {missing[0]} is missing", line=last_row_line)

    def matrix(self, notes: Notes) -> SmiMatrix:
        kept = [place for place, device in enumerate(self._devices) if not device.upper().startswith("MIG")]
        if len(kept) < len(self._devices):
            notes.add("MIG devices are left out: each is where its GPU is", self._header_line)
        devices = tuple(self._devices[place] for place in kept)
        matrix = SmiMatrix(
            devices,
            {device: [self._rows[device].cells[place] for place in kept] for device in devices},
            {device: self._rows[device].line for device in devices},
            tuple(self._affinities),
            self._run_together,
            {device: self._rows[device].behind for device in devices},
            self._legend,
        )
        _check_symmetry(matrix)
        return matrix

    def _read_header(self, line: str) -> None:
        place = 0
        while place < len(line):
            match = _COLUMN.match(line, place)
            if not match:
                raise TopologyError(f"'{line[place:].strip()[:40]}' is no name of a column", line=self._header_line)
            if match["affinity"]:
                self._affinities.append(match["affinity"].split()[0].upper())
            else:
                self._devices.append(_name(match))
            place = match.end()
        num_gpus = sum(is_gpu(device) for device in self._devices)
        for count, most, what in ((num_gpus, MOST_GPUS, "GPUs"), (len(self._devices) - num_gpus, MOST_NICS, "NICs")):
            if count > most:
                message = f"the matrix has {count} {what}, more than the {most} that a machine may have"
                raise TopologyError(message, line=self._header_line)
        if num_gpus == 0 or not is_gpu(self._devices[0]) or len(set(self._devices)) != len(self._devices):
            raise TopologyError("the line above the matrix does not name its columns", line=self._header_line)

    def _read_rows(self, lines: Sequence[str], start: int) -> int:
        """Rows and the legend of NICs. Gives the number of the last line that held a row."""
        last, columns = start, set(self._devices)
        for number, line in enumerate(lines[start:], start + 1):
            if legend := _NIC_LEGEND.match(line):
                self._legend.setdefault(f"NIC{int(legend[1])}", legend[2])
            label = _label(line)
            if label is None or label[0] not in columns:
                continue
            if label[0] in self._rows and len(self._rows) == len(columns):
                break  # another matrix
            if label[0] in self._rows:
                first = self._rows[label[0]].line
                raise TopologyError(f"row {label[0]} is given twice, first in line {first}", line=number)
            self._rows[label[0]] = self._read_row(*label, line, number)
            last = number
        return last

    def _read_row(self, device: str, place: int, line: str, number: int) -> _Row:
        row = _Row(number)
        while len(row.cells) < len(self._devices):
            match = _CELL.match(line, place)
            if not match:
                rest = line[place:].split()
                what = f"'{rest[0][:20]}' is no distance" if rest else "the row is cut off"
                told = f"row {device} has {len(row.cells)} of {len(self._devices)} distances"
                raise TopologyError(f"{told}: {what}", line=number)
            cell = match[1]
            if cell.startswith("NV") and int(cell[2:]) > MOST_NVLINKS:
                cell = cell[:3]
            row.cells.append("SYS" if cell == "SOC" else cell)  # its name in old drivers
            place = match.start(1) + len(cell)
        if _CELL.match(line, place):
            raise TopologyError(f"row {device} has more distances than {len(self._devices)} columns", line=number)
        row.behind = line[place:].split()
        return row


def _check_symmetry(matrix: SmiMatrix) -> None:
    for place, a in enumerate(matrix.devices):
        for other, b in enumerate(matrix.devices):
            cell, back = matrix.cells[a][other], matrix.cells[b][place]
            if (cell == "X") != (a == b) or cell.startswith("NV0"):
                raise TopologyError(f"row {a} has {cell} in column {b}", line=matrix.lines[a])
            if cell != back:
                raise TopologyError(f"from {a} to {b} it is {cell}, back it is {back}", line=matrix.lines[a])
