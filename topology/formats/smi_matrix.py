"""Reads the matrix that `nvidia-smi topo -m` prints, also out of a text that quotes it.

The text may have tabs or spaces, escape codes of a terminal, marks of a comment or a quotation, a prompt before and a
legend after the matrix, and may lack the columns of CPU and NUMA affinity.
"""

from __future__ import annotations

import re
from itertools import combinations

from isthmus.topology.machine import (
    MOST_GPUS,
    MOST_NICS,
    Gpu,
    Link,
    Machine,
    Nic,
    NumaNode,
    Socket,
    TopologyError,
    check_number,
    printable,
)
from isthmus.topology.pcie import nic_kind

_ESCAPE_CODE = re.compile(r"\x1b?\[[0-9;]{0,16}m")
_WORD = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID|[^\s|]+")
_CELL = re.compile(r"X|NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC", re.ASCII)
_GPU = re.compile(r"GPU(?:0|[1-9]\d{0,3})", re.ASCII)
_NUMBERED_NIC = re.compile(r"NIC(?:0|[1-9]\d{0,3})", re.ASCII)
_CPUS = re.compile(r"[\d,-]{1,999}", re.ASCII)
#: How a GPU and a NIC are joined that are in one NUMA node.
_IN_ONE_NUMA_NODE = ("PIX", "PXB", "PHB", "NODE")


def parse_smi_matrix(text: str, name: str) -> Machine:
    """The machine of the first matrix in the text. TopologyError: there is none, or it is damaged; it says where."""
    matrix = _Matrix([_words(line) for line in text.splitlines()])
    notes = ["a matrix has no PCIe tree, no speeds and no models: they are unknown"]
    affinity_of = {device: matrix.affinity(device) for device in matrix.devices if _GPU.fullmatch(device)}
    gpus = tuple(Gpu(int(device[3:]), numa_node=numa_node) for device, (_, numa_node) in affinity_of.items())
    nics = _nics(matrix, gpus)
    numa_nodes: dict[int, str | None] = {}
    for cpus, numa_node in affinity_of.values():
        if numa_node is not None:
            numa_nodes.setdefault(numa_node, cpus)
    if numa_nodes:
        notes.append("a matrix names NUMA nodes, not sockets: each NUMA node is taken for a socket")
    else:
        notes.append("the matrix does not tell NUMA nodes: they and sockets are unknown")
    id_of = dict(zip(matrix.devices, [*(gpu.id for gpu in gpus), *(nic.id for nic in nics)], strict=True))
    return Machine(
        name,
        "nvidia-smi topo -m",
        sockets=tuple(Socket(index, (index,)) for index in sorted(numa_nodes)),
        numa_nodes=tuple(NumaNode(index, index, cpus) for index, cpus in sorted(numa_nodes.items())),
        gpus=gpus,
        nics=nics,
        links=tuple(Link(id_of[a], id_of[b], matrix.cells[a, b]) for a, b in combinations(matrix.devices, 2)),
        notes=tuple(notes),
    )


def _words(line: str) -> list[str]:
    return [printable(word) for word in _WORD.findall(_ESCAPE_CODE.sub("", line).lstrip(" \t*#>/|"))]


def _nics(matrix: _Matrix, gpus: tuple[Gpu, ...]) -> tuple[Nic, ...]:
    """In the order of their columns. Their number is that of the name, where all have one, or else the place."""
    devices = matrix.devices[len(gpus) :]
    are_numbered = all(_NUMBERED_NIC.fullmatch(device) for device in devices)
    nics = []
    for place, device in enumerate(devices):
        near = {gpu.numa_node for gpu in gpus if matrix.cells[gpu.id, device] in _IN_ONE_NUMA_NODE}
        name = matrix.name_of.get(device) if _NUMBERED_NIC.fullmatch(device) else device
        kind = nic_kind(None, None, name, speaks_verbs=True)
        numa_node = near.pop() if len(near) == 1 else None
        nics.append(Nic(int(device[3:]) if are_numbered else place, name, kind=kind, numa_node=numa_node))
    return tuple(nics)


class _Matrix:
    """A whole matrix, which is symmetric.

    devices: GPUs, then NICs, as columns name them. cells: by two of them. name_of: what the legend says of NICs.
    """

    def __init__(self, lines: list[list[str]]) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        self.name_of = {
            words[0][:-1]: words[1] for words in lines if len(words) == 2 and _NUMBERED_NIC.fullmatch(words[0][:-1])
        }
        self._behind: dict[str, list[str]] = {}
        first = next((place for place, words in enumerate(lines) if _is_row_of_gpu(words)), None)
        if first is None:
            raise TopologyError("holds no matrix as `nvidia-smi topo -m` prints it: no GPU0, GPU1 ... and rows below")
        header = next((line for line in range(first, 0, -1) if lines[line - 1]), 1)
        self.devices, self._affinities = _columns(lines[header - 1] if header <= first else [], header)
        line = first
        for line, words in enumerate(lines[first:], first + 1):
            if words and words[0] in self.devices:
                if len(self._behind) == len(self.devices):
                    break  # another matrix
                self._read_row(words[0], words[1:], line)
        if missing := [device for device in self.devices if device not in self._behind]:
            raise TopologyError(f"the matrix is cut off: row {missing[0]} is missing", line=line)
        for a, b in combinations(self.devices, 2):
            if self.cells[a, b] != self.cells[b, a]:
                raise TopologyError(f"from {a} to {b} it is {self.cells[a, b]}, back it is {self.cells[b, a]}")

    def _read_row(self, device: str, words: list[str], line: int) -> None:
        if device in self._behind:
            raise TopologyError(f"row {device} is given twice", line=line)
        size = len(self.devices)
        for column, cell in zip(self.devices, words[:size], strict=False):
            if not _CELL.fullmatch(cell) or (cell == "X") != (column == device):
                raise TopologyError(f"row {device} has '{cell[:20]}' in column {column}: no distance", line=line)
            self.cells[device, column] = "SYS" if cell == "SOC" else cell  # its name in old drivers
        if len(words) < size or (len(words) > size and _CELL.fullmatch(words[size])):
            what = f"has {len(words)} of {size} distances" if len(words) < size else f"has more than {size} distances"
            raise TopologyError(f"row {device} {what}", line=line)
        self._behind[device] = words[size:]

    def affinity(self, gpu: str) -> tuple[str | None, int | None]:
        """Processors and NUMA node; None where they are not told, or the words below the columns are not theirs."""
        words = self._behind[gpu]
        if len(words) != len(self._affinities):
            return None, None
        value_of = dict(zip(self._affinities, words, strict=True))
        cpus, numa_node = value_of.get("CPU", ""), value_of.get("NUMA", "")
        return (
            cpus if _CPUS.fullmatch(cpus) else None,
            int(numa_node) if re.fullmatch(r"\d{1,4}", numa_node, re.ASCII) else None,
        )


def _is_row_of_gpu(words: list[str]) -> bool:
    return len(words) > 1 and bool(_GPU.fullmatch(words[0]) and _CELL.fullmatch(words[1]))


def _columns(words: list[str], line: int) -> tuple[list[str], list[str]]:
    """Names of devices, GPUs first, and the first words of the columns behind them."""
    num_devices = next((place for place, word in enumerate(words) if " " in word), len(words))
    devices = words[:num_devices]
    gpus = [device for device in devices if _GPU.fullmatch(device)]
    if not gpus or devices[: len(gpus)] != gpus or len(set(devices)) != len(devices):
        raise TopologyError("the line above the matrix does not name its columns, GPUs first", line=line)
    check_number(len(gpus), MOST_GPUS, "GPUs", line)
    check_number(len(devices) - len(gpus), MOST_NICS, "NICs", line)
    return devices, [word.split()[0] for word in words[num_devices:]]
