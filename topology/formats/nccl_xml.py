"""Reads NCCL's topology XML: what `NCCL_TOPO_FILE` takes and what `NCCL_TOPO_DUMP_FILE` gets.

The hand-written kind has PCI devices with classes only; a dump has <gpu>, <nic>, <net>, <nvlink> and <c2c> elements.
A <pci> bridge stands for a whole switch, and a <cpu> for a NUMA node with all its host bridges.
"""

from __future__ import annotations

from itertools import combinations

from lxml import etree

from isthmus.topology import pcie
from isthmus.topology.distance import NvLinks, link_devices, nvlink_gbit_s
from isthmus.topology.draft import (
    DraftGpu,
    DraftNic,
    DraftPlace,
    Notes,
    at_line,
    check_bus_ids,
    check_depth,
    number_devices,
)
from isthmus.topology.formats.xml_text import cpus_of_mask, integer_of, line_of, text_of, to_integer
from isthmus.topology.machine import MOST_GBIT_S, MOST_NUMA_NODES, Machine, NumaNode, PcieKind, Socket, TopologyError

#: NVLinks of one GPU; today's have 18.
MOST_NVLINKS = 72
#: 1: NCCL, 2: RCCL.
_VERSIONS = (1, 2)
_NVSWITCH_CLASS, _POWER_CPU_CLASS, _GPU_CLASSES = "0x068000", "0x068001", "0x03"
#: NVML says this of a switch that a virtual machine cannot see.
_HIDDEN = "ffffffff:ffff:ff"
_MOST_INDEX = 2**31 - 1


def parse_nccl_xml(root: etree._Element, name: str) -> Machine:
    """The machine that the element <system> describes. TopologyError: it cannot be one."""
    return _Reader(root).machine(name)


class _Reader:
    """Reads the document once; numbers and links devices at the end."""

    def __init__(self, root: etree._Element) -> None:
        self._notes = Notes()
        self._roots: list[DraftPlace] = []
        self._named: list[tuple[str, int | None]] = []
        self._numa_cpus: dict[int, str | None] = {}
        self._numa_models: dict[int, str | None] = {}
        #: What NVLinks lead to, by the class that the file gives: NVSwitches and GPUs.
        self._switches: set[str] = set()
        self._peers: set[str] = set()
        self._check_version(root)
        for cpu in self._cpus_of_one_host(root):
            self._read_cpu(cpu)
        check_bus_ids(self._named)

    def machine(self, name: str) -> Machine:
        gpus, nics = number_devices(self._roots, self._notes)
        if not gpus and not nics:
            raise TopologyError("names neither a GPU nor a NIC")
        drafts = [gpu for root in self._roots for place in root.walk() for gpu in place.gpus]
        tree = tuple(place for root in self._roots if (place := root.finish()))
        nvlinks = self._join(drafts)
        self._note_what_is_missing(drafts, len(tree))
        numa_nodes = tuple(NumaNode(index, index, cpus) for index, cpus in sorted(self._numa_cpus.items()))
        return Machine(
            name,
            "nccl xml",
            sockets=tuple(Socket(node.index, (node.index,), self._numa_models[node.index]) for node in numa_nodes),
            numa_nodes=numa_nodes,
            gpus=gpus,
            nics=nics,
            links=link_devices(gpus, nics, tree, nvlinks, len(numa_nodes)),
            pcie=tree,
            num_nvswitches=None if _HIDDEN in self._switches or not nvlinks else len(self._switches),
            notes=self._notes.all(),
        )

    def _join(self, gpus: list[DraftGpu]) -> dict[tuple[int, int], NvLinks]:
        """NVLinks between each two GPUs: those that name each other, and all that have links to switches.

        Switches are taken for one fabric: two GPUs are joined by as many links as the one with fewer has to switches.
        """
        self._name_strangers(gpus)
        to_switches = {gpu: sum(n for target, n in gpu.nvlinks_to.items() if target in self._switches) for gpu in gpus}
        joined = {}
        for a, b in combinations(sorted(gpus, key=lambda gpu: gpu.index), 2):
            if count := _direct(a, b, self._notes) or min(to_switches[a], to_switches[b]):
                joined[a.index, b.index] = NvLinks(count, _speed(a, b, count))
        return joined

    def _name_strangers(self, gpus: list[DraftGpu]) -> None:
        """Name the ends of NVLinks that the file does not describe: GPUs that the job did not see; else switches."""
        described = {gpu.bus_id for gpu in gpus} | self._switches
        for gpu in gpus:
            strangers = set(gpu.nvlinks_to) - described
            if strangers & self._peers:
                self._notes.add("NVLinks to GPUs that the file does not describe are left out", gpu.line)
            if unclassed := strangers - self._peers:
                self._notes.add(
                    "NVLinks to something that the file does not describe are taken to lead to switches", gpu.line
                )
                self._switches |= unclassed

    def _note_what_is_missing(self, gpus: list[DraftGpu], num_trees: int) -> None:
        if len(self._numa_cpus) > 1:
            self._notes.add("NCCL's files name NUMA nodes, not sockets: each NUMA node is taken for a socket")
        if num_trees:
            self._notes.add("NCCL's files name no host bridges: PHB stands for PHB and NODE")
        if len(gpus) > 1 and not any(gpu.nvlinks_to for gpu in gpus):
            self._notes.add("the file names no NVLinks: GPUs are taken to be joined by PCIe only")

    def _check_version(self, root: etree._Element) -> None:
        version = integer_of(root, "version", 0, _MOST_INDEX)
        if version is None:
            self._notes.add("<system> has no version: 1 is assumed", line_of(root))
        elif version not in _VERSIONS:
            raise TopologyError(f"<system> has version {version}: expected 1 or 2", line=line_of(root))

    def _cpus_of_one_host(self, root: etree._Element) -> list[etree._Element]:
        """A dump of a multi-node NVLink domain holds the hosts one after another."""
        cpus = root.findall("cpu")
        hosts = list(dict.fromkeys(text_of(cpu, "host_hash") for cpu in cpus))
        if len(hosts) > 1:
            self._notes.add(
                f"the file describes {len(hosts)} hosts: the first, host_hash {(hosts[0] or 'none')[:40]}, is read"
            )
        return [cpu for cpu in cpus if text_of(cpu, "host_hash") == hosts[0]]

    def _read_cpu(self, cpu: etree._Element) -> None:
        numa_node = integer_of(cpu, "numaid", -1, MOST_NUMA_NODES - 1)
        if numa_node is None or numa_node < 0:
            numa_node = None
            self._notes.add("a NUMA node has no number: its devices are in none", line_of(cpu))
        elif numa_node in self._numa_cpus:
            raise TopologyError(f"NUMA node {numa_node} is given twice", line=line_of(cpu))
        else:
            self._numa_cpus[numa_node] = cpus_of_mask(text_of(cpu, "affinity") or "")
            self._numa_models[numa_node] = _processor_model(cpu)
        place = DraftPlace(PcieKind.HOST_BRIDGE, numa_node=numa_node)
        self._read_children(cpu, place, 2)
        self._roots.append(place)

    def _read_children(self, element: etree._Element, place: DraftPlace, depth: int) -> None:
        for child in element:
            if child.tag == "pci":
                check_depth(depth, line_of(child))
                self._read_pci(child, place, depth)
            elif child.tag == "nic" and element.tag == "cpu":
                adapter = DraftPlace(PcieKind.NIC, nics=self._nets(child, None, None, None))
                place.children.append(adapter)
            elif not (element.tag == "pci" and child.tag in ("gpu", "nic", "pcilink")):
                self._notes.add(f"<{child.tag[:40]}> in <{element.tag[:40]}> is unknown and left out", line_of(child))

    def _read_pci(self, pci: etree._Element, parent: DraftPlace, depth: int) -> None:
        text = text_of(pci, "busid")
        if text is None:
            raise TopologyError("<pci> has no busid", line=line_of(pci))
        bus_id = at_line(line_of(pci), lambda: pcie.bus_id(text))
        class_code = _class_code(pci)
        place = DraftPlace(PcieKind.SWITCH, bus_id, self._link_speed(pci))
        vendor = integer_of(pci, "vendor", 0, 0xFFFF)
        self._named.append((bus_id, line_of(pci)))
        if pci.find("gpu") is not None or (class_code is not None and pcie.is_gpu(class_code, vendor)):
            place.kind = PcieKind.GPU
            place.gpus = self._gpus(pci, bus_id, vendor)
        elif pci.find("nic") is not None or (class_code is not None and pcie.is_nic(class_code)):
            place.kind = PcieKind.NIC
            place.nics = self._nics(pci, bus_id, class_code, vendor)
        elif pci.find("pci") is None:
            if class_code is None or not pcie.is_bridge(class_code):
                what = "no class" if class_code is None else f"class 0x{class_code:04x}"
                self._notes.add(f"a PCI device of {what} is neither GPU nor NIC and left out", line_of(pci))
            return
        parent.children.append(place)
        self._read_children(pci, place, depth + 1)

    def _gpus(self, pci: etree._Element, bus_id: str, vendor: int | None) -> list[DraftGpu]:
        """Those that the elements <gpu> describe; one that is known by its class only."""
        model = pcie.gpu_model(vendor, integer_of(pci, "device", 0, 0xFFFF))
        gpus = [self._gpu(gpu, bus_id) for gpu in pci.findall("gpu")] or [DraftGpu(bus_id, line_of(pci))]
        for gpu in gpus:
            gpu.model = model or gpu.model
        return gpus

    def _nics(self, pci: etree._Element, bus_id: str, class_code: int | None, vendor: int | None) -> list[DraftNic]:
        """Those that the elements <net> describe; one that is known by its class only."""
        adapter = pci.find("nic")
        nics = [] if adapter is None else self._nets(adapter, bus_id, class_code, vendor)
        if nics:
            return nics
        self._notes.add("a NIC has neither name nor speed: both are unknown", line_of(pci))
        kind = pcie.nic_kind(class_code, vendor, None, speaks_verbs=class_code == 0x0207)
        return [DraftNic(bus_id, line_of(pci), kind=kind)]

    def _link_speed(self, pci: etree._Element) -> float | None:
        speed, width = pci.get("link_speed", ""), pci.get("link_width", "")
        return at_line(line_of(pci), lambda: pcie.link_speed_gbit_s(speed, width))

    def _gpu(self, element: etree._Element, bus_id: str) -> DraftGpu:
        gpu = DraftGpu(bus_id, line_of(element), integer_of(element, "dev", 0, _MOST_INDEX))
        gpu.compute_capability = integer_of(element, "sm", 0, 999)
        gpu.model = None if gpu.compute_capability is None else f"GPU of compute capability {_dotted(gpu)}"
        for child in element:
            if child.tag == "nvlink":
                self._read_nvlink(child, gpu)
            elif child.tag == "c2c":
                gpu.cpu_link_speed_gbit_s = self._c2c_gbit_s(child)
            else:
                self._notes.add(f"<{child.tag[:40]}> in <gpu> is unknown and left out", line_of(child))
        return gpu

    def _read_nvlink(self, nvlink: etree._Element, gpu: DraftGpu) -> None:
        line = line_of(nvlink)
        target = text_of(nvlink, "target")
        count = integer_of(nvlink, "count", 1, MOST_NVLINKS)
        if target is None:
            raise TopologyError("<nvlink> has no target", line=line)
        if count is None:
            self._notes.add("<nvlink> has no count: 1 is assumed", line)
            count = 1
        is_hidden = target.lower().startswith("fffffff")
        bus_id = _HIDDEN if is_hidden else at_line(line, lambda: pcie.bus_id(target))
        if bus_id == gpu.bus_id:
            raise TopologyError(f"<nvlink> of {gpu.bus_id} leads to itself", line=line)
        target_class = text_of(nvlink, "tclass")
        if target_class == _POWER_CPU_CLASS:
            speed = nvlink_gbit_s(gpu.compute_capability)
            gpu.cpu_link_speed_gbit_s = None if speed is None else speed * count
            return
        if target_class == _NVSWITCH_CLASS or is_hidden:
            self._switches.add(bus_id)
        elif target_class is not None and target_class.startswith(_GPU_CLASSES):
            self._peers.add(bus_id)
        gpu.nvlinks_to[bus_id] = gpu.nvlinks_to.get(bus_id, 0) + count
        if sum(gpu.nvlinks_to.values()) > MOST_NVLINKS:
            raise TopologyError(f"{gpu.bus_id} has more than {MOST_NVLINKS} NVLinks", line=line)

    def _c2c_gbit_s(self, c2c: etree._Element) -> float | None:
        """NVML gives MB/s of each of the links."""
        mb_s, count = integer_of(c2c, "bw", 0, 10**7), integer_of(c2c, "count", 0, MOST_NVLINKS)
        return mb_s * count * 8 / 1000 if mb_s and count else None

    def _nets(
        self, adapter: etree._Element, bus_id: str | None, class_code: int | None, vendor: int | None
    ) -> list[DraftNic]:
        nics = []
        for net in adapter.findall("net"):
            name = text_of(net, "name")
            # NCCL names sockets after interfaces (eth0, ens5), and devices of verbs or plugins otherwise (mlx5_0).
            speaks_verbs = name is None or not name.startswith(("eth", "en", "bond", "ib"))
            nics.append(
                DraftNic(
                    bus_id,
                    line_of(net),
                    integer_of(net, "dev", 0, _MOST_INDEX),
                    name,
                    pcie.nic_kind(class_code, vendor, name, speaks_verbs),
                    self._net_speed(net),
                )
            )
        return nics

    def _net_speed(self, net: etree._Element) -> float | None:
        mbit_s = integer_of(net, "speed", -(10**9), int(MOST_GBIT_S) * 1000)
        if mbit_s is None or mbit_s <= 0:
            self._notes.add("a NIC has no speed above 0: it is unknown", line_of(net))
            return None
        return mbit_s / 1000


def _class_code(pci: etree._Element) -> int | None:
    """The first 16 of the 24 bits that are written as 0x030200; "0x03" alone is a class without a subclass."""
    text = text_of(pci, "class")
    if text is None:
        return None
    digits = text.lower().removeprefix("0x")
    value = to_integer("0x" + digits)
    if value is None or len(digits) > 6:
        raise TopologyError(f"<pci> has class='{text[:40]}': expected one like 0x030200", line=line_of(pci))
    return int(digits.ljust(4, "0")[:4], 16)


def _processor_model(cpu: etree._Element) -> str | None:
    parts = [text_of(cpu, "vendor"), text_of(cpu, "familyid"), text_of(cpu, "modelid")]
    words = [f"{what}{part}" for what, part in zip(("", "family ", "model "), parts, strict=True) if part]
    return " ".join(words) or text_of(cpu, "arch")


def _dotted(gpu: DraftGpu) -> str:
    major, minor = divmod(gpu.compute_capability or 0, 10)
    return f"{major}.{minor}"


def _direct(a: DraftGpu, b: DraftGpu, notes: Notes) -> int:
    ways = [count for count in (a.nvlinks_to.get(b.bus_id, 0), b.nvlinks_to.get(a.bus_id, 0)) if count]
    if len(ways) == 1:
        notes.add("only one of two GPUs names the NVLinks between them: it is believed", a.line)
    elif ways and ways[0] != ways[1]:
        notes.add("two GPUs name different numbers of NVLinks between them: the fewer are taken", a.line)
    return min(ways, default=0)


def _speed(a: DraftGpu, b: DraftGpu, count: int) -> float | None:
    speeds = [nvlink_gbit_s(a.compute_capability), nvlink_gbit_s(b.compute_capability)]
    known = [speed for speed in speeds if speed is not None]
    return min(known) * count if len(known) == 2 else None
