"""Reads the matrix that `nvidia-smi topo -m` prints, also from pasted text."""

from __future__ import annotations

import re
from itertools import combinations

from isthmus.topology.draft import Notes
from isthmus.topology.formats.smi_text import SmiMatrix, find_matrix, is_gpu
from isthmus.topology.machine import Gpu, Link, Machine, Nic, NumaNode, Socket
from isthmus.topology.pcie import nic_kind

_CPUS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", re.ASCII)
#: How a GPU and a NIC are joined that are in one NUMA node.
_IN_ONE_NUMA_NODE = ("PIX", "PXB", "PHB", "NODE")


def parse_smi_matrix(text: str, name: str) -> Machine:
    """The machine of the first whole matrix in the text. TopologyError: there is none; it says why not."""
    notes = Notes()
    matrix = find_matrix(text, notes)
    affinity_of = {device: _affinity(matrix, device, notes) for device in matrix.devices if is_gpu(device)}
    gpus = tuple(
        Gpu(int(device[3:]), numa_node=numa_node)
        for device, (_, numa_node) in sorted(affinity_of.items(), key=lambda item: int(item[0][3:]))
    )
    nic_of = _nics(matrix, gpus)
    numa_nodes: dict[int, str | None] = {}
    for cpus, numa_node in affinity_of.values():
        if numa_node is not None:
            numa_nodes.setdefault(numa_node, cpus)
    _note_what_is_missing(matrix, len(numa_nodes), notes)
    id_of = {gpu.id: gpu.id for gpu in gpus} | {device: nic.id for device, nic in nic_of.items()}
    return Machine(
        name,
        "nvidia-smi topo -m",
        sockets=tuple(Socket(index, (index,)) for index in sorted(numa_nodes)),
        numa_nodes=tuple(NumaNode(index, index, cpus) for index, cpus in sorted(numa_nodes.items())),
        gpus=gpus,
        nics=tuple(nic_of.values()),
        links=tuple(Link(id_of[a], id_of[b], matrix.distance(a, b)) for a, b in combinations(id_of, 2)),
        notes=notes.all(),
    )


def _nics(matrix: SmiMatrix, gpus: tuple[Gpu, ...]) -> dict[str, Nic]:
    """By name of the column and by rising index: the number in the name, where all have one, or else the place."""
    devices = [device for device in matrix.devices if not is_gpu(device)]
    numbers = {device: place for place, device in enumerate(devices)}
    if all(re.fullmatch(r"NIC\d+", device) for device in devices):
        numbers = {device: int(device[3:]) for device in devices}
    found = {}
    for device in sorted(devices, key=lambda device: numbers[device]):
        near = {gpu.numa_node for gpu in gpus if matrix.distance(gpu.id, device) in _IN_ONE_NUMA_NODE}
        numa_node = near.pop() if len(near) == 1 else None
        name = matrix.legend.get(device, None if re.fullmatch(r"NIC\d+", device) else device)
        kind = nic_kind(None, None, name, speaks_verbs=True)
        found[device] = Nic(numbers[device], name, kind=kind, numa_node=numa_node)
    return found


def _affinity(matrix: SmiMatrix, gpu: str, notes: Notes) -> tuple[str | None, int | None]:
    """Processors and NUMA node, from the columns behind the distances."""
    words, line = list(matrix.behind[gpu]), matrix.lines[gpu]
    num_missing = len(matrix.affinities) - len(words)
    cpus = None
    if "CPU" in matrix.affinities and words and _CPUS.fullmatch(words[0]):
        if matrix.run_together and num_missing > 0 and "NUMA" in matrix.affinities:
            notes.add("CPU and NUMA affinity run together: the last digit is taken for the NUMA node", line)
            return words[0][:-1].rstrip(",-") or None, int(words[0][-1])
        # Some systems tell no processors: of fewer words than columns the first, if a plain number, is a NUMA node.
        if num_missing <= 0 or not words[0].isdigit():
            cpus = words.pop(0)
    if "NUMA" not in matrix.affinities or not words or words[0] == "N/A":
        return cpus, None
    if not re.fullmatch(r"\d{1,5}", words[0], re.ASCII):
        notes.add("a GPU is next to several NUMA nodes: it is taken to be in none", line)
        return cpus, None
    return cpus, int(words[0])


def _note_what_is_missing(matrix: SmiMatrix, num_numa_nodes: int, notes: Notes) -> None:
    notes.add("a matrix has no PCIe tree, no speeds and no models: they are unknown")
    if num_numa_nodes > 1:
        notes.add("a matrix names NUMA nodes, not sockets: each NUMA node is taken for a socket")
    if num_numa_nodes == 0:
        notes.add("the matrix names no NUMA nodes: they and sockets are unknown")
    if any(re.fullmatch(r"NIC\d+", device) and device not in matrix.legend for device in matrix.devices):
        notes.add("the matrix has no legend of its NICs: their names are unknown")
