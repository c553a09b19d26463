"""Reads a recorded machine: NCCL's topology XML, which `NCCL_TOPO_FILE` takes and `NCCL_TOPO_DUMP_FILE` gets.

The hand-written kind has PCI devices with classes only; a dump has <gpu>, <nic>, <net> and <nvlink> elements.
A <pci> bridge stands for a whole switch, and a <cpu> for a NUMA node with all its host bridges.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from isthmus.topology import pcie
from isthmus.topology.machine import (
    Gpu,
    Link,
    Machine,
    Nic,
    NumaNode,
    PcieKind,
    Socket,
    TopologyError,
    all_known,
    printable,
)
from isthmus.topology.tree import UNNUMBERED, Place, link_devices, number_devices

_EXPECTED = "expected NCCL topology XML, as NCCL_TOPO_DUMP_FILE gets it"
#: NVLinks of one GPU; today's have 18.
_MOST_NVLINKS = 72
_MOST_NUMA_NODES = 1024
#: Places below each other in the PCIe tree. Real machines have up to six.
_MOST_PCIE_LEVELS = 32
#: More than any NIC has.
_MOST_MBIT_S = 10**9
#: Gbit/s in one direction of one NVLink, by compute capability (10 x major + minor). From NVIDIA's data sheets, which
#: add both directions of all links: P100 4 links, 160 GB/s; V100 6, 300; A100 12, 600; A40 4, 112.5; H100 18, 900;
#: B200 and B300 18, 1800.
_NVLINK_GBIT_S = {60: 160.0, 70: 200.0, 80: 200.0, 86: 112.5, 90: 200.0, 100: 400.0, 103: 400.0}
_POWER_CPU_CLASS, _GPU_CLASSES = "0x068001", "0x03"
#: NVML says this of a switch that a virtual machine cannot see.
_HIDDEN = "fffffff"
_MOST_INDEX = 2**31 - 1


@dataclass(eq=False, slots=True)
class _Element:
    """An element of untrusted XML: no text, comments or entities. line: where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def all(self, tag: str) -> list[_Element]:
        """Its children of that name."""
        return [child for child in self.children if child.tag == tag]


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
    root = _parse_xml(text)
    if root.tag != "system":
        raise TopologyError(f"is XML with root <{root.tag[:40]}>: {_EXPECTED}", line=root.line)
    _integer_of(root, "version", 1, 2)  # 1: NCCL, 2: RCCL
    reader = _Reader()
    cpus = root.all("cpu")
    hosts = list(dict.fromkeys(_text_of(cpu, "host_hash") for cpu in cpus))
    if len(hosts) > 1:  # a multi-node NVLink domain
        reader.notes.append(f"the file describes {len(hosts)} hosts: the first, host_hash {hosts[0]}, is read")
    for cpu in cpus:
        if _text_of(cpu, "host_hash") == hosts[0]:
            reader.read_cpu(cpu)
    return reader.machine(name)


class _Reader:
    """Reads the document once; numbers and links devices at the end."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._roots: list[Place] = []
        self._numa_nodes: dict[int, NumaNode] = {}
        self._sockets: dict[int, Socket] = {}
        self._line_of: dict[str, int] = {}
        #: By the bus id of a GPU: how many links lead to each bus id, and how fast one of them is.
        self._nvlinks: dict[str, Counter[str]] = {}
        self._nvlink_gbit_s: dict[str, float | None] = {}
        #: What links lead to that is no GPU.
        self._switches: set[str] = set()

    def machine(self, name: str) -> Machine:
        gpus = number_devices(self._roots, Gpu, self.notes)
        nics = number_devices(self._roots, Nic, self.notes)
        if not gpus and not nics:
            raise TopologyError("names neither a GPU nor a NIC")
        tree = tuple(place for root in self._roots if (place := root.finish()))
        self._switches -= {gpu.bus_id for gpu in gpus if gpu.bus_id}
        links = link_devices(gpus, nics, tree, self._join, len(self._numa_nodes))
        if len(self._numa_nodes) > 1:
            self.notes.append("NCCL's files name NUMA nodes, not sockets: each NUMA node is taken for a socket")
        self.notes.append("NCCL's files name no host bridges: PHB stands for PHB and NODE")
        if len(gpus) > 1 and not any(self._nvlinks.values()):
            self.notes.append("the file names no NVLinks: GPUs are taken to be joined by PCIe only")
        return Machine(
            name,
            "nccl xml",
            sockets=tuple(self._sockets[index] for index in sorted(self._sockets)),
            numa_nodes=tuple(self._numa_nodes[index] for index in sorted(self._numa_nodes)),
            gpus=gpus,
            nics=nics,
            links=links,
            pcie=tree,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _join(self, a: Gpu, b: Gpu) -> Link | None:
        """The NVLinks of two GPUs: those that name the other one, or as many as both have to switches.

        Switches are taken for one fabric.
        """
        of_a, of_b = (self._nvlinks.get(gpu.bus_id or "", Counter[str]()) for gpu in (a, b))
        direct = [count for count in (of_a[b.bus_id or ""], of_b[a.bus_id or ""]) if count]
        if len(set(direct)) > 1:
            self.notes.append("two GPUs name different numbers of NVLinks between them: the fewer are taken")
        to_switches = (sum(links[switch] for switch in self._switches) for links in (of_a, of_b))
        count = min(direct, default=0) or min(to_switches)
        if not count:
            return None
        speeds = all_known(self._nvlink_gbit_s.get(gpu.bus_id or "") for gpu in (a, b))
        return Link(a.id, b.id, f"NV{count}", min(speeds) * count if speeds else None)

    def read_cpu(self, cpu: _Element) -> None:
        """Read a NUMA node with all that hangs from it."""
        numa_node = _integer_of(cpu, "numaid", -1, _MOST_NUMA_NODES - 1)
        if numa_node in self._numa_nodes:
            raise TopologyError(f"NUMA node {numa_node} is given twice", line=cpu.line)
        if numa_node is None or numa_node < 0:
            numa_node = None
            self.notes.append("a NUMA node has no number: its devices are in none")
        else:
            self._numa_nodes[numa_node] = NumaNode(numa_node, numa_node, _cpus_of_mask(_text_of(cpu, "affinity") or ""))
            self._sockets[numa_node] = Socket(numa_node, (numa_node,), _processor_model(cpu))
        place = Place(PcieKind.HOST_BRIDGE, numa_node=numa_node)
        place.children = [Place(PcieKind.NIC, devices=_nets(nic, None, None, None)) for nic in cpu.all("nic")]
        self._read_children(cpu, place, 2)
        self._roots.append(place)

    def _read_children(self, element: _Element, place: Place, depth: int) -> None:
        for pci in element.all("pci"):
            try:
                if depth > _MOST_PCIE_LEVELS:
                    raise TopologyError(f"PCIe devices nest more than {_MOST_PCIE_LEVELS} deep")
                self._read_pci(pci, place, depth)
            except TopologyError as error:
                raise error if error.line is not None else TopologyError(error.what, line=pci.line) from None

    def _read_pci(self, pci: _Element, parent: Place, depth: int) -> None:
        bus_id = pcie.bus_id(_text_of(pci, "busid") or "")
        if bus_id in self._line_of:
            raise TopologyError(f"bus id {bus_id} is given twice, first in line {self._line_of[bus_id]}")
        self._line_of[bus_id] = pci.line
        class_code, vendor = _class_code(pci), _integer_of(pci, "vendor", 0, 0xFFFF)
        speed_gbit_s = pcie.link_speed_gbit_s((_text_of(pci, "link_speed") or "", _text_of(pci, "link_width") or ""))
        place = Place(PcieKind.SWITCH, bus_id, speed_gbit_s)
        gpu, nic = (next(iter(pci.all(tag)), None) for tag in ("gpu", "nic"))
        if gpu is not None or (class_code is not None and pcie.is_gpu(class_code, vendor)):
            place.kind, place.devices = PcieKind.GPU, [self._gpu(pci, gpu, bus_id, vendor)]
        elif nic is not None or (class_code is not None and pcie.is_nic(class_code)):
            nets = [] if nic is None else _nets(nic, bus_id, class_code, vendor)
            kind = pcie.nic_kind(class_code, vendor, None, speaks_verbs=class_code == 0x0207)
            place.kind, place.devices = PcieKind.NIC, nets or [Nic(UNNUMBERED, None, bus_id, kind)]
        self._read_children(pci, place, depth + 1)
        if place.devices or place.children:
            parent.children.append(place)

    def _gpu(self, pci: _Element, element: _Element | None, bus_id: str, vendor: int | None) -> Gpu:
        """A GPU that <gpu> describes, or one that is known by its class only."""
        model = pcie.gpu_model(vendor, _integer_of(pci, "device", 0, 0xFFFF))
        if element is None:
            return Gpu(UNNUMBERED, bus_id, model)
        index = _integer_of(element, "dev", 0, _MOST_INDEX)
        capability = _integer_of(element, "sm", 0, 999)
        if model is None and capability is not None:
            model = f"GPU of compute capability {capability // 10}.{capability % 10}"
        self._nvlink_gbit_s[bus_id] = None if capability is None else _NVLINK_GBIT_S.get(capability)
        links = self._nvlinks[bus_id] = Counter[str]()
        for nvlink in element.all("nvlink"):
            self._read_nvlink(nvlink, bus_id, links)
        return Gpu(UNNUMBERED if index is None else index, bus_id, model)

    def _read_nvlink(self, nvlink: _Element, bus_id: str, links: Counter[str]) -> None:
        text, target_class = _text_of(nvlink, "target") or "", _text_of(nvlink, "tclass") or ""
        target = _HIDDEN if text.lower().startswith(_HIDDEN) else pcie.bus_id(text)
        if target == bus_id:
            raise TopologyError(f"<nvlink> of {bus_id} leads to itself", line=nvlink.line)
        count = _integer_of(nvlink, "count", 1, _MOST_NVLINKS)
        if target_class == _POWER_CPU_CLASS:
            return
        links[target] += 1 if count is None else count
        if links.total() > _MOST_NVLINKS:
            raise TopologyError(f"{bus_id} has more than {_MOST_NVLINKS} NVLinks", line=nvlink.line)
        if not target_class.startswith(_GPU_CLASSES):  # one that has no class may be a GPU of the file still
            self._switches.add(target)


def _nets(nic: _Element, bus_id: str | None, class_code: int | None, vendor: int | None) -> list[Nic]:
    nics = []
    for net in nic.all("net"):
        name, index = _text_of(net, "name"), _integer_of(net, "dev", 0, _MOST_INDEX)
        mbit_s = _integer_of(net, "speed", -_MOST_MBIT_S, _MOST_MBIT_S) or 0
        # NCCL names sockets after interfaces (eth0, ens5), and devices of verbs or plugins otherwise (mlx5_0).
        speaks_verbs = name is None or not name.startswith(("eth", "en", "bond", "ib"))
        kind = pcie.nic_kind(class_code, vendor, name, speaks_verbs)
        speed_gbit_s = mbit_s / 1000 if mbit_s > 0 else None
        nics.append(Nic(UNNUMBERED if index is None else index, name, bus_id, kind, speed_gbit_s))
    return nics


def _class_code(pci: _Element) -> int | None:
    """The first 16 of the 24 bits that are written as 0x030200; "0x03" alone is a class without a subclass."""
    text = _text_of(pci, "class")
    if text is None:
        return None
    match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{1,6})", text)
    if not match:
        raise TopologyError(f"<pci> has class='{text[:40]}': expected one like 0x030200", line=pci.line)
    return int(match[1].ljust(4, "0")[:4], 16)


def _processor_model(cpu: _Element) -> str | None:
    parts = [_text_of(cpu, "vendor"), _text_of(cpu, "familyid"), _text_of(cpu, "modelid")]
    words = [f"{what}{part}" for what, part in zip(("", "family ", "model "), parts, strict=True) if part]
    return " ".join(words) or _text_of(cpu, "arch")


def _cpus_of_mask(mask: str) -> str | None:
    """Processors in a mask of 32-bit words, the highest first: "000000ff,ffff0000" -> "16-39". None: no such mask."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8}){0,255}", mask):
        return None
    from_lowest = f"{int(mask.replace(',', ''), 16):b}"[::-1]
    runs = ((run.start(), run.end() - 1) for run in re.finditer("1+", from_lowest))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or None


def _parse_xml(text: str) -> _Element:
    """The root. TopologyError: this is no well-formed XML, or it declares entities."""
    begin = text.lstrip()
    lines_before = text[: len(text) - len(begin)].count("\n")
    parser = expat.ParserCreate("utf-8")  # whatever encoding the declaration names: this is text already
    document = _Element("", {}, 0)
    open_elements = [document]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = _Element(tag, attributes, lines_before + parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def refuse_entity(*_: Any) -> None:
        line = lines_before + parser.CurrentLineNumber
        raise TopologyError("declares XML entities, which descriptions of machines do not need", line=line)

    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = (
        start,
        lambda _: open_elements.pop(),
        refuse_entity,
    )
    try:
        parser.Parse(begin.encode(), True)
    except expat.ExpatError as error:
        what = f"is no well-formed XML: {expat.ErrorString(error.code)}"
        raise TopologyError(what, line=lines_before + error.lineno) from None
    except UnicodeEncodeError as error:
        raise TopologyError(f"is no text: {error.reason}") from None
    return document.children[0]


def _text_of(element: _Element, name: str) -> str | None:
    """An attribute, without blanks around it and without control characters; None: it is missing or empty."""
    return printable(element.attributes.get(name, "").strip()) or None


def _integer_of(element: _Element, name: str, least: int, most: int) -> int | None:
    """A decimal number, or a hexadecimal one with 0x; None: it is missing. TopologyError: no number or out of range."""
    value = _text_of(element, name)
    if value is None:
        return None
    is_number = re.fullmatch(r"[+-]?\d{1,18}|0[xX][0-9a-fA-F]{1,16}", value, re.ASCII)
    number = int(value, 16 if value[:2] in ("0x", "0X") else 10) if is_number else None
    if number is None or not least <= number <= most:
        raise TopologyError(
            f"<{element.tag}> has {name}='{value[:40]}': expected an integer from {least} to {most}", line=element.line
        )
    return number
