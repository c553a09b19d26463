"""Reads hwloc's XML (`lstopo machine.xml`), as hwloc 2 and 3 write it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations

from lxml import etree

from isthmus.topology import pcie
from isthmus.topology.distance import NvLinks, link_devices
from isthmus.topology.draft import (
    DraftGpu,
    DraftNic,
    DraftPlace,
    Notes,
    at_line,
    check_bus_ids,
    check_depth,
    fold_ports,
    number_devices,
)
from isthmus.topology.formats.xml_text import cpus_of_mask, integer_of, line_of, text_of, to_integer
from isthmus.topology.machine import MOST_GBIT_S, MOST_NUMA_NODES, Machine, NumaNode, PcieKind, Socket, TopologyError

#: Objects in one matrix of distances: GPUs, switches and processors.
MOST_OBJECTS = 1024
#: GB/s of a PCIe link; generation 7 with 16 lanes has 242.
MOST_PCIE_GB_S = 1000.0
#: MB/s of one NVLink: generation 1 (at most four links a GPU), and those up to 4.
_NVLINK_1_MB_S, _NVLINK_MB_S = 20000, 25000
_MOST_NVLINKS = 18
_GPU_DEVICES = ("CUDA", "NVML", "RSMI")
_PCI_OBJECTS = ("Bridge", "PCIDev")
_MOST_INDEX = 2**31 - 1


def parse_hwloc_xml(root: etree._Element, name: str) -> Machine:
    """The machine that the element <topology> describes. TopologyError: it cannot be one."""
    version = text_of(root, "version")
    if version is None:
        raise TopologyError(
            "is hwloc XML of version 1: convert it with hwloc 2 (lstopo --input OLD.xml NEW.xml)", line=line_of(root)
        )
    if not re.fullmatch(r"[23]\.\d+", version):
        raise TopologyError(f"is hwloc XML of version '{version[:20]}': expected 2 or 3", line=line_of(root))
    return _Reader(root).machine(name)


class _Reader:
    """Reads the objects once; numbers and links devices at the end."""

    def __init__(self, root: etree._Element) -> None:
        self._root = root
        self._notes = Notes()
        self._roots: list[DraftPlace] = []
        self._named: list[tuple[str, int | None]] = []
        self._gpu_of: dict[int, DraftGpu] = {}
        self._switches: set[int] = set()
        self._processors: set[int] = set()
        for element in root.iter("object"):
            self._classify(element)
        for element in root.iter("object"):
            if element.get("type") in _PCI_OBJECTS and not _is_io(element.getparent()):
                self._read_root(element)
        check_bus_ids(self._named)

    def machine(self, name: str) -> Machine:
        joined = self._nvlinks()
        gpus, nics = number_devices(self._roots, self._notes)
        nvlinks = {(min(a.index, b.index), max(a.index, b.index)): links for (a, b), links in joined.items()}
        for root in self._roots:
            fold_ports(root)
        tree = tuple(place for root in self._roots if (place := root.finish()))
        sockets, numa_nodes = self._processors_and_memory()
        if not gpus and not nics:
            self._notes.add("the file names neither GPUs nor NICs")
        return Machine(
            self._host_name() or name,
            "hwloc xml",
            sockets=sockets,
            numa_nodes=numa_nodes,
            gpus=gpus,
            nics=nics,
            links=link_devices(gpus, nics, tree, nvlinks, len(numa_nodes)),
            pcie=tree,
            num_nvswitches=len(self._switches) if nvlinks else None,
            notes=self._notes.all(),
        )

    def _host_name(self) -> str | None:
        return next(
            (text_of(info, "value") for info in self._root.iter("info") if info.get("name") == "HostName"), None
        )

    def _processors_and_memory(self) -> tuple[tuple[Socket, ...], tuple[NumaNode, ...]]:
        models = {index: _info(element, "CPUModel") for index, element in self._by_os_index("Package").items()}
        numa_nodes = [
            NumaNode(index, _package_of(element), cpus_of_mask(text_of(element, "cpuset") or ""))
            for index, element in self._by_os_index("NUMANode").items()
        ]
        inside: dict[int | None, list[int]] = {}
        for node in numa_nodes:
            inside.setdefault(node.socket, []).append(node.index)
        sockets = tuple(Socket(index, tuple(inside.get(index, ())), model) for index, model in models.items())
        return sockets, tuple(numa_nodes)

    def _by_os_index(self, kind: str) -> dict[int, etree._Element]:
        """Objects of a kind by rising number. TopologyError: one is given twice, or they are too many."""
        found: dict[int, etree._Element] = {}
        for element in self._root.iter("object"):
            if element.get("type") == kind:
                index = _os_index(element)
                if index in found:
                    raise TopologyError(f"{kind} {index} is given twice", line=line_of(element))
                found[index] = element
                if len(found) > MOST_NUMA_NODES:
                    raise TopologyError(f"has more than {MOST_NUMA_NODES} objects {kind}", line=line_of(element))
        return dict(sorted(found.items()))

    def _classify(self, element: etree._Element) -> None:
        """Remember which objects of the matrix of NVLinks are switches or processors; GPUs are found later."""
        number = _gp_index(element)
        if element.get("type") == "PCIDev":
            class_code, _ = _class_and_vendor(element)
            is_switch = element.get("subtype") == "NVSwitch" or (
                class_code is not None and pcie.is_nvswitch(class_code)
            )
            if is_switch and number is not None:
                self._switches.add(number)
        elif not _is_io(element) and number is not None:
            self._processors.add(number)

    def _read_root(self, element: etree._Element) -> None:
        """A host bridge, or devices right below the processor where bridges were left out."""
        numa_node = _only_numa_node(element.getparent())
        place = DraftPlace(PcieKind.HOST_BRIDGE, numa_node=numa_node)
        is_host_bridge = element.get("type") == "Bridge" and element.get("bridge_type", "").startswith("0-")
        place.bus_id = _root_bus(element) if is_host_bridge else None
        for child in element.iterchildren("object") if is_host_bridge else [element]:
            self._read_place(child, place, 2)
        if place.children and not is_host_bridge:
            self._notes.add("the file leaves out host bridges: PCIe distances are those of NUMA nodes")
        self._roots.append(place)

    def _read_place(self, element: etree._Element, parent: DraftPlace, depth: int) -> None:
        check_depth(depth, line_of(element))
        kind = element.get("type")
        if kind not in _PCI_OBJECTS:
            return  # a device of the operating system that is not on PCIe
        text = text_of(element, "pci_busid")
        bus_id = None if text is None else at_line(line_of(element), lambda: pcie.bus_id(text))
        if kind == "PCIDev" and bus_id is None:
            raise TopologyError("a PCIDev has no pci_busid", line=line_of(element))
        place = DraftPlace(PcieKind.SWITCH, bus_id, self._link_speed(element))
        if bus_id is not None:
            self._named.append((bus_id, line_of(element)))
            self._read_devices(element, place, bus_id)
        if kind == "Bridge" or place.gpus or place.nics:
            parent.children.append(place)
            for child in element.iterchildren("object"):
                self._read_place(child, place, depth + 1)

    def _read_devices(self, element: etree._Element, place: DraftPlace, bus_id: str) -> None:
        class_code, vendor = _class_and_vendor(element)
        if element.get("type") == "Bridge" or class_code is None:
            return
        devices = [child for child in element.iterchildren("object") if child.get("type") == "OSDev"]
        if pcie.is_gpu(class_code, vendor) or any(device.get("subtype") in _GPU_DEVICES for device in devices):
            place.kind = PcieKind.GPU
            place.gpus = [self._gpu(element, devices, bus_id)]
        elif pcie.is_nic(class_code) or any(_is_network(device) for device in devices):
            place.kind = PcieKind.NIC
            place.nics = list(_nics(element, devices, bus_id, class_code, vendor))

    def _gpu(self, element: etree._Element, devices: list[etree._Element], bus_id: str) -> DraftGpu:
        gpu = DraftGpu(bus_id, line_of(element), model=_info(element, "PCIDevice"))
        for device in devices:
            if (number := _gp_index(device)) is not None:
                self._gpu_of[number] = gpu
            gpu.model = _info(device, "GPUModel") or gpu.model
            match = re.fullmatch(r"(nvml|cuda|rsmi)(\d{1,9})", device.get("name", ""))
            if match and (gpu.number is None or match[1] == "nvml"):
                gpu.number = int(match[2])
        if (number := _gp_index(element)) is not None:
            self._gpu_of[number] = gpu
        return gpu

    def _link_speed(self, element: etree._Element) -> float | None:
        """hwloc gives GB/s, after encoding; 0 where it does not know."""
        text = text_of(element, "pci_link_speed") or "0"
        gb_s = float(text) if re.fullmatch(r"-?\d{1,9}(\.\d{0,12})?", text, re.ASCII) else -1.0
        if not 0 <= gb_s <= MOST_PCIE_GB_S:
            raise TopologyError(
                f"pci_link_speed='{text[:40]}': expected GB/s from 0 to {MOST_PCIE_GB_S:.0f}", line=line_of(element)
            )
        return round(gb_s * 8, 3) or None

    def _nvlinks(self) -> dict[tuple[DraftGpu, DraftGpu], NvLinks]:
        found: dict[tuple[DraftGpu, DraftGpu], NvLinks] = {}
        for element in self._root:
            if element.tag in ("distances2", "distances2hetero") and element.get("name") == "NVLinkBandwidth":
                found |= self._join(element)
        return found

    def _join(self, element: etree._Element) -> dict[tuple[DraftGpu, DraftGpu], NvLinks]:
        """NVLinks between each two GPUs: direct ones, or as many as the one with fewer has to switches."""
        objects, rows = _matrix(element)
        if strangers := set(objects) - set(self._gpu_of) - self._switches - self._processors:
            line = line_of(element)
            raise TopologyError(f"NVLinkBandwidth names object {min(strangers)}, which is not in the file", line=line)
        gpus = {place: self._gpu_of[number] for place, number in enumerate(objects) if number in self._gpu_of}
        switches = [place for place, number in enumerate(objects) if number in self._switches]
        processors = [place for place, number in enumerate(objects) if number in self._processors]
        for place, gpu in gpus.items():
            gpu.cpu_link_speed_gbit_s = self._gbit_s(sum(rows[place][other] for other in processors), element)
        to_switches = {place: sum(rows[place][other] for other in switches) for place in gpus}
        joined = {}
        for (a, gpu_a), (b, gpu_b) in combinations(gpus.items(), 2):
            between = min(rows[a][b], rows[b][a]) or min(to_switches[a], to_switches[b])
            if speed := self._gbit_s(between, element):
                joined[gpu_a, gpu_b] = NvLinks(self._count(between), speed)
        return joined

    def _gbit_s(self, mb_s: int, element: etree._Element) -> float | None:
        speed = mb_s * 8 / 1000
        if speed > MOST_GBIT_S:
            raise TopologyError(f"NVLinkBandwidth holds {mb_s} MB/s: that is absurd", line=line_of(element))
        return speed or None

    def _count(self, mb_s: int) -> int:
        """hwloc gives the sum of the links; their generation tells how many they are."""
        for one in (_NVLINK_MB_S, _NVLINK_1_MB_S, 2 * _NVLINK_MB_S):
            if mb_s % one == 0 and mb_s // one <= _MOST_NVLINKS:
                return mb_s // one
        count = max(1, min(round(mb_s / _NVLINK_MB_S), _MOST_NVLINKS))
        self._notes.add(f"{mb_s} MB/s is no multiple of a known NVLink: taken for {count} links")
        return count


def _is_io(element: etree._Element | None) -> bool:
    return element is not None and element.get("type") in ("Bridge", "PCIDev", "OSDev")


def _is_network(device: etree._Element) -> bool:
    """Whether hwloc 2 says type 2 (network) or 3 (OpenFabrics). hwloc 3 numbers types anew: there its facts tell."""
    return "Address" in _infos(device) or "NodeGUID" in _infos(device) or device.get("osdev_type") in ("2", "3")


def _nics(
    element: etree._Element, devices: list[etree._Element], bus_id: str, class_code: int, vendor: int | None
) -> Iterator[DraftNic]:
    """A NIC for each verbs device, or where there is none for each interface, or one without a name."""
    network = [device for device in devices if _is_network(device)]
    verbs = [device for device in network if "NodeGUID" in _infos(device) or device.get("osdev_type") == "3"]
    for device in verbs or network or [element]:
        name = text_of(device, "name")
        kind = pcie.nic_kind(class_code, vendor, name, speaks_verbs=bool(verbs))
        yield DraftNic(bus_id, line_of(device), name=name, kind=kind)


def _infos(element: etree._Element) -> Mapping[str, str]:
    return {info.get("name", ""): text_of(info, "value") or "" for info in element.iterchildren("info")}


def _info(element: etree._Element, name: str) -> str | None:
    return _infos(element).get(name) or None


def _os_index(element: etree._Element) -> int:
    index = integer_of(element, "os_index", 0, _MOST_INDEX)
    if index is None:
        raise TopologyError(f"a {element.get('type')} has no os_index", line=line_of(element))
    return index


def _package_of(element: etree._Element) -> int | None:
    """The processor that an object is in; None: it is above them."""
    above = (one for one in element.iterancestors("object") if one.get("type") == "Package")
    package = next(above, None)
    return None if package is None else _os_index(package)


def _gp_index(element: etree._Element) -> int | None:
    return integer_of(element, "gp_index", 0, 2**63)


def _class_and_vendor(element: etree._Element) -> tuple[int | None, int | None]:
    """The vendor and the device in pci_type="0302 [10de:15f9] [10de:116b] a1"."""
    text = text_of(element, "pci_type")
    if text is None:
        return None, None
    match = re.match(r"([0-9a-fA-F]{4})(?: \[([0-9a-fA-F]{4}):[0-9a-fA-F]{4}\])?", text)
    if not match:
        what = f"pci_type='{text[:40]}': expected class and ids, such as 0302 [10de:15f9]"
        raise TopologyError(what, line=line_of(element))
    return int(match[1], 16), None if match[2] is None else int(match[2], 16)


def _only_numa_node(element: etree._Element | None) -> int | None:
    """The NUMA node that an object is in; None: it spans several, or says nothing of it."""
    nodes = cpus_of_mask((None if element is None else text_of(element, "nodeset")) or "")
    return int(nodes) if nodes is not None and nodes.isdigit() else None


def _root_bus(bridge: etree._Element) -> str | None:
    """ "0002:[00-01]" -> "0002:00"."""
    match = re.match(r"([0-9a-fA-F]{4,8}):\[([0-9a-fA-F]{2})-", text_of(bridge, "bridge_pci") or "")
    return f"{match[1]}:{match[2]}".lower() if match else None


def _matrix(element: etree._Element) -> tuple[list[int], list[list[int]]]:
    """Objects by gp_index, and a row of values for each."""
    line = line_of(element)
    size = integer_of(element, "nbobjs", 0, MOST_OBJECTS)
    objects = [to_integer(word.rpartition(":")[2]) for word in _words(element, "indexes")]
    values = [to_integer(word) for word in _words(element, "u64values")]
    if size is None or len(objects) != size or len(values) != size * size:
        what = f"NVLinkBandwidth has {len(objects)} objects and {len(values)} values, of {size} x {size}"
        raise TopologyError(what, line=line)
    numbers = [number for number in objects if number is not None and number >= 0]
    speeds = [value for value in values if value is not None and value >= 0]
    if len(set(numbers)) != size or len(speeds) != size * size:
        raise TopologyError("NVLinkBandwidth holds an object twice, or something that is no number", line=line)
    return numbers, [speeds[row * size : (row + 1) * size] for row in range(size)]


def _words(element: etree._Element, name: str) -> list[str]:
    return [word for part in element.iterchildren(name) for word in (part.text or "").split()]
