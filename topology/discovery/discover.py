"""The machine that this process runs on, from all sources that exist at run time.

Each source gives what it knows best:

- sysfs: processors, NUMA nodes, the PCIe tree with the best speed of each link, NICs. Always present.
- NVML: the GPUs, their names, their NVLinks and their multi-node fabric.
- hwloc: what the two others lack (NUMA nodes of devices, names of GPUs and NVLinks without NVML). It reports the
  present speed of a PCIe link, and an idle GPU slows its link down: so it never overrides sysfs.

A source that is missing is normal, and named in `Machine.notes`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from isthmus.topology.discovery.hwloc import HwlocFacts, read_hwloc
from isthmus.topology.discovery.nvml import NvLink, NvmlFacts, NvmlGpu, read_nvml
from isthmus.topology.discovery.sysfs import Facts, Roots, read_facts
from isthmus.topology.discovery.sysfs_nics import find_nics
from isthmus.topology.discovery.sysfs_tree import PcieTrees
from isthmus.topology.distance import NvLinks, link_devices
from isthmus.topology.draft import DraftGpu, DraftNic, Notes, number_devices
from isthmus.topology.formats.read import parse_machine
from isthmus.topology.machine import Gpu, Machine, Nic, NicKind, NumaNode, Socket, TopologyError


def discover(
    roots: Roots | None = None,
    ask_nvml: Callable[[], NvmlFacts] = read_nvml,
    ask_hwloc: Callable[[], HwlocFacts] = read_hwloc,
) -> Machine:
    """Describe this machine. The parameters replace it in tests.

    Raises TopologyError for more devices than a machine may have; whatever else is missing is None or noted.
    """
    facts = read_facts(roots)
    nvml = ask_nvml()
    notes = Notes()
    hwloc = _hwloc_machine(ask_hwloc(), notes)
    for sentence in (nvml.missing, *nvml.notes):
        if sentence:
            notes.add(sentence)
    gpus = _draft_gpus(facts, nvml, notes)
    nics, about_nics = find_nics(facts)
    for sentence in about_nics:
        notes.add(sentence)
    return _join(facts, nvml, hwloc, gpus, nics, notes)


def _join(
    facts: Facts,
    nvml: NvmlFacts,
    hwloc: Machine | None,
    draft_gpus: list[DraftGpu],
    draft_nics: list[DraftNic],
    notes: Notes,
) -> Machine:
    places = PcieTrees(facts.pci, draft_gpus, draft_nics)
    gpus, nics = number_devices([*places.trees, places.loose], notes)
    pcie = tuple(place for tree in places.trees if (place := tree.finish()))
    fabric_of = {gpu.index: gpu.fabric for gpu in nvml.gpus}
    gpus = tuple(replace(gpu, bus_id=gpu.bus_id or None, fabric=fabric_of.get(gpu.index)) for gpu in gpus)
    numa_nodes = _numa_nodes(facts) or (hwloc.numa_nodes if hwloc else ())
    nvlinks = _nvlinks(nvml.gpus)
    if hwloc is not None:
        gpus, nics = _fill_gpus(gpus, hwloc), _fill_nics(nics, hwloc)
        nvlinks = nvlinks if nvml.missing is None else _nvlinks_by_hwloc(gpus, hwloc)
    if len(numa_nodes) == 1:
        gpus = tuple(replace(gpu, numa_node=numa_nodes[0].index) for gpu in gpus)
        nics = tuple(replace(nic, numa_node=numa_nodes[0].index) for nic in nics)
    _note_what_is_unknown(facts, gpus, nics, notes)
    return Machine(
        name=facts.host_name or "this machine",
        source="discovery",
        sockets=_sockets(facts) or (hwloc.sockets if hwloc else ()),
        numa_nodes=numa_nodes,
        gpus=gpus,
        nics=nics,
        links=link_devices(gpus, nics, pcie, nvlinks, len(numa_nodes)),
        pcie=pcie,
        num_nvswitches=_num_nvswitches(facts, nvml),
        notes=notes.all(),
    )


def _hwloc_machine(answer: HwlocFacts, notes: Notes) -> Machine | None:
    if answer.xml is None:
        notes.add(answer.missing or "hwloc: no answer")
        return None
    try:
        return parse_machine(answer.xml, "hwloc")
    except TopologyError as error:
        notes.add(f"hwloc: {error}")
        return None


def _draft_gpus(facts: Facts, nvml: NvmlFacts, notes: Notes) -> list[DraftGpu]:
    """NVML decides which GPUs there are: a container may see fewer than the bus has."""
    on_bus = [device.bus_id for device in facts.pci if device.is_gpu]
    if nvml.missing is not None:
        if on_bus:
            notes.add("without NVML, GPUs have no model, and NVLinks are unknown")
        return [DraftGpu(bus_id, None) for bus_id in on_bus]
    for gpu in nvml.gpus:
        if gpu.in_mig_mode:
            notes.add(f"GPU{gpu.index} is in MIG mode: its instances share its PCIe link and use no NVLink")
    hidden = sorted(set(on_bus) - {gpu.bus_id for gpu in nvml.gpus})
    if hidden:
        notes.add(f"NVML does not show {', '.join(hidden)}: left out")
    return [
        DraftGpu(gpu.bus_id or "", None, gpu.index, gpu.model, cpu_link_speed_gbit_s=_to_cpu_gbit_s(gpu))
        for gpu in nvml.gpus
    ]


def _to_cpu_gbit_s(gpu: NvmlGpu) -> float | None:
    return gpu.c2c_gbit_s or _speed_of_all([link for link in gpu.nvlinks if link.peer == "cpu"])


def _speed_of_all(links: Sequence[NvLink]) -> float | None:
    speeds = [link.speed_gbit_s for link in links]
    known = [speed for speed in speeds if speed is not None]
    return sum(known) if known and len(known) == len(speeds) else None


def _nvlinks(gpus: Sequence[NvmlGpu]) -> dict[tuple[int, int], NvLinks]:
    """Return bonded NVLinks of each pair: direct ones, or as many as both have to switches, which reach every GPU."""
    pairs = {}
    for a, b in combinations(sorted(gpus, key=lambda gpu: gpu.index), 2):
        direct = [link for link in a.nvlinks if link.peer_bus_id is not None and link.peer_bus_id == b.bus_id]
        through_switches = min(([link for link in gpu.nvlinks if link.peer == "switch"] for gpu in (a, b)), key=len)
        bonded = direct or through_switches
        if bonded:
            pairs[a.index, b.index] = NvLinks(len(bonded), _speed_of_all(bonded))
    return pairs


def _num_nvswitches(facts: Facts, nvml: NvmlFacts) -> int | None:
    """Count switches on the bus, else those that NVLinks name; a virtual machine may show neither."""
    on_bus = sum(device.is_nvswitch for device in facts.pci)
    if on_bus or nvml.missing is not None:
        return on_bus or None
    to_switches = [link for gpu in nvml.gpus for link in gpu.nvlinks if link.peer == "switch"]
    named = {link.peer_bus_id for link in to_switches if link.peer_bus_id}
    return len(named) if named or not to_switches else None


def _sockets(facts: Facts) -> tuple[Socket, ...]:
    nodes_of: dict[int, set[int]] = defaultdict(set)
    for cpu in facts.cpus:
        if cpu.socket is not None:
            nodes_of[cpu.socket] |= {node.index for node in facts.numa_nodes if cpu.index in node.cpu_indices}
    return tuple(Socket(index, tuple(sorted(nodes)), facts.cpu_model) for index, nodes in sorted(nodes_of.items()))


def _numa_nodes(facts: Facts) -> tuple[NumaNode, ...]:
    socket_of = {cpu.index: cpu.socket for cpu in facts.cpus}
    nodes = []
    for node in facts.numa_nodes:
        sockets = Counter(socket_of.get(cpu) for cpu in node.cpu_indices)
        sockets.pop(None, None)
        nodes.append(NumaNode(node.index, next(iter(sockets)) if len(sockets) == 1 else None, node.cpus))
    return tuple(nodes)


def _fill_gpus(gpus: tuple[Gpu, ...], hwloc: Machine) -> tuple[Gpu, ...]:
    known: dict[str | None, Gpu] = {gpu.bus_id: gpu for gpu in hwloc.gpus if gpu.bus_id is not None}
    return tuple(
        replace(
            gpu,
            model=gpu.model if gpu.model is not None else other.model,
            numa_node=gpu.numa_node if gpu.numa_node is not None else other.numa_node,
        )
        if (other := known.get(gpu.bus_id)) is not None
        else gpu
        for gpu in gpus
    )


def _fill_nics(nics: tuple[Nic, ...], hwloc: Machine) -> tuple[Nic, ...]:
    known: dict[str | None, Nic] = {nic.bus_id: nic for nic in hwloc.nics if nic.bus_id is not None}
    return tuple(
        replace(nic, numa_node=nic.numa_node if nic.numa_node is not None else other.numa_node)
        if (other := known.get(nic.bus_id)) is not None
        else nic
        for nic in nics
    )


def _nvlinks_by_hwloc(gpus: tuple[Gpu, ...], hwloc: Machine) -> dict[tuple[int, int], NvLinks]:
    theirs = {gpu.bus_id: gpu for gpu in hwloc.gpus if gpu.bus_id is not None}
    pairs = {}
    for a, b in combinations(gpus, 2):
        if a.bus_id in theirs and b.bus_id in theirs:
            link = hwloc.link(theirs[a.bus_id], theirs[b.bus_id])
            if link.num_nvlinks:
                pairs[a.index, b.index] = NvLinks(link.num_nvlinks, link.speed_gbit_s)
    return pairs


def _note_what_is_unknown(facts: Facts, gpus: Sequence[Gpu], nics: Sequence[Nic], notes: Notes) -> None:
    if not facts.has_pci:
        notes.add("sysfs shows no PCIe bus: distances are those between NUMA nodes")
    if not facts.has_network:
        notes.add("sysfs shows no network interfaces")
    on_bus = {device.bus_id for device in facts.pci}
    devices: list[Gpu | Nic] = [*gpus, *nics]
    lost = [device.id for device in devices if device.bus_id not in on_bus]
    if lost and facts.has_pci:
        notes.add(f"not on the PCIe bus that sysfs shows: {', '.join(lost)}")
    if unknown := [nic.name or nic.id for nic in nics if nic.speed_gbit_s is None]:
        notes.add(f"the driver does not say how fast {', '.join(unknown)} is")
    if unknown := [nic.name or nic.id for nic in nics if nic.kind is NicKind.UNKNOWN]:
        notes.add(f"the driver does not say what {', '.join(unknown)} speaks")
