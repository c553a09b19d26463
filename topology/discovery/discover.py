"""The machine that this process runs on, from what exists at run time.

- sysfs: processors, NUMA nodes, the PCIe tree with the best speed of each link, NICs. Always present.
- NVML: the GPUs, their names, their NVLinks and their multi-node fabric.

A source that is missing is normal, and named in `Machine.notes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from isthmus.topology import pcie
from isthmus.topology.discovery.nvml import NvmlFacts, read_nvml
from isthmus.topology.discovery.sysfs import Facts, Interface, PciDevice, RdmaPort, Roots, read_facts
from isthmus.topology.machine import RDMA, Gpu, Link, Machine, Nic, NicKind, PcieKind, all_known
from isthmus.topology.tree import UNNUMBERED, Place, link_devices, number_devices

#: By the hardware type of an interface: ARPHRD_ETHER, ARPHRD_INFINIBAND; what is not known may be one.
_KIND_OF = {1: NicKind.ETHERNET, 32: NicKind.INFINIBAND, None: NicKind.UNKNOWN}


def discover(roots: Roots | None = None, ask_nvml: Callable[[], NvmlFacts] = read_nvml) -> Machine:
    """Describe this machine. The parameters replace it in tests.

    Raises TopologyError for more devices than a machine may have; whatever else is missing is None or noted.
    """
    facts = read_facts(roots)
    nvml = ask_nvml()
    notes = [nvml.missing] if nvml.missing else list(nvml.notes)
    device_at = {device.bus_id: device for device in facts.pci}
    devices: list[Gpu | Nic] = [*_find_gpus(facts, nvml, notes), *_find_nics(facts, device_at, notes)]
    trees, loose = _place_devices(device_at, devices)
    if len(facts.numa_nodes) == 1:
        for root in (*trees, loose):
            root.numa_node = facts.numa_nodes[0].index
    gpus = number_devices([*trees, loose], Gpu, notes)
    nics = number_devices([*trees, loose], Nic, notes)
    bridges = tuple(place for tree in trees if (place := tree.finish()))
    if not facts.pci:
        notes.append("sysfs shows no PCIe bus: distances are those between NUMA nodes")
    elif loose.devices:
        lost = sorted(loose.devices, key=lambda device: (isinstance(device, Nic), device.index))
        notes.append(f"not on the PCIe bus that sysfs shows: {', '.join(device.id for device in lost)}")
    return Machine(
        name=facts.host_name or "this machine",
        source="discovery",
        sockets=facts.sockets,
        numa_nodes=facts.numa_nodes,
        gpus=gpus,
        nics=nics,
        links=link_devices(gpus, nics, bridges, partial(_nvlinks, nvml), len(facts.numa_nodes)),
        pcie=bridges,
        notes=tuple(dict.fromkeys(notes)),
    )


def _find_gpus(facts: Facts, nvml: NvmlFacts, notes: list[str]) -> list[Gpu]:
    """NVML decides which GPUs there are: a container may see fewer than the bus has."""
    on_bus = [device for device in facts.pci if pcie.is_gpu(device.class_code, device.vendor or 0)]
    if nvml.missing is not None:
        if on_bus:
            notes.append("without NVML, NVLinks are unknown, and GPUs are those of the bus")
        return [Gpu(UNNUMBERED, gpu.bus_id, pcie.gpu_model(gpu.vendor, gpu.device)) for gpu in on_bus]
    if hidden := sorted({gpu.bus_id for gpu in on_bus} - {gpu.bus_id for gpu in nvml.gpus}):
        notes.append(f"NVML does not show {', '.join(hidden)}: left out")
    return list(nvml.gpus)


def _find_nics(facts: Facts, device_at: Mapping[str, PciDevice], notes: list[str]) -> list[Nic]:
    """Return NICs, verbs devices first, each kind by name in natural order.

    A port may be seen twice, as a verbs device (mlx5_0) and as an interface (ens1np0): it is one NIC under the verbs
    device's name. Interfaces that do not lead to another node by themselves are left out.
    """
    left_out: list[str] = []
    nics = list(_verbs_nics(facts, device_at, left_out))
    nics += _interface_nics(facts, device_at, left_out)
    nics = _without_virtual_functions(nics, device_at)
    nics.sort(key=lambda nic: (nic.kind not in RDMA, _natural(nic.name or "")))
    if left_out:
        notes.append(f"left out: {', '.join(left_out)}")
    return [replace(nic, index=index) for index, nic in enumerate(nics)]


def _verbs_nics(facts: Facts, device_at: Mapping[str, PciDevice], left_out: list[str]) -> Iterator[Nic]:
    for port in facts.rdma_ports:
        name = port.device if port.port == 1 else f"{port.device}:{port.port}"
        if port.bus_id is None:
            left_out.append(f"{name} (made by software)")  # Soft-RoCE, Soft-iWARP: its interface is what counts
        elif port.is_down:
            left_out.append(f"{name} (down)")
        else:
            device = device_at.get(port.bus_id)
            yield Nic(UNNUMBERED, name, port.bus_id, _kind_of_port(port, device), port.speed_gbit_s)


def _kind_of_port(port: RdmaPort, device: PciDevice | None) -> NicKind:
    if device is not None and device.vendor == pcie.AMAZON:
        return NicKind.EFA
    over_ethernet = NicKind.ETHERNET if port.is_iwarp else NicKind.ROCE
    kinds = {"InfiniBand": NicKind.INFINIBAND, "Ethernet": over_ethernet}
    return kinds.get(port.link_layer or "", NicKind.UNKNOWN)


def _interface_nics(facts: Facts, device_at: Mapping[str, PciDevice], left_out: list[str]) -> Iterator[Nic]:
    taken: dict[tuple[str, int], str] = {}
    for interface in sorted(facts.interfaces, key=lambda one: (one.bus_id is None, _natural(one.name))):
        reason = _reason_against(interface, facts, device_at, taken)
        if reason is None:
            if interface.bus_id is not None:
                taken[interface.bus_id, interface.port] = interface.name
            kind = _KIND_OF[interface.hardware_type]
            yield Nic(UNNUMBERED, interface.name, interface.bus_id, kind, interface.speed_gbit_s)
        elif reason:
            left_out.append(f"{interface.name} ({reason})")


def _reason_against(
    interface: Interface, facts: Facts, device_at: Mapping[str, PciDevice], taken: dict[tuple[str, int], str]
) -> str | None:
    """Return why an interface is no NIC of its own; empty: for a reason that needs no note; None: it is one."""
    if interface.is_virtual or interface.is_representor or _is_seen_as_verbs(interface, facts):
        return ""
    device = device_at.get(interface.bus_id or "")
    if interface.is_usb or (device is not None and not pcie.is_nic(device.class_code)):
        return "not on PCIe"
    if interface.hardware_type not in _KIND_OF:
        return "neither Ethernet nor InfiniBand"
    if interface.is_down:
        return "down"
    if (interface.bus_id or "", interface.port) in taken or set(interface.lower) & set(taken.values()):
        return f"the same port as {next(iter(set(interface.lower) & set(taken.values())), 'another interface')}"
    return None


def _is_seen_as_verbs(interface: Interface, facts: Facts) -> bool:
    """Whether a verbs device is this port: the only one of its PCI function, or that with this number."""
    ports = [port.port for port in facts.rdma_ports if port.bus_id == interface.bus_id and port.bus_id is not None]
    return ports == [1] or interface.port + 1 in ports


def _without_virtual_functions(nics: list[Nic], device_at: Mapping[str, PciDevice]) -> list[Nic]:
    """Drop virtual functions whose physical function is there: they share its port."""
    present = {nic.bus_id for nic in nics}
    physical_of = {bus_id: device.physical_function for bus_id, device in device_at.items() if device.physical_function}
    return [nic for nic in nics if physical_of.get(nic.bus_id or "", "") not in present]


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts mlx5_2 before mlx5_10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _place_devices(device_at: Mapping[str, PciDevice], devices: Iterable[Gpu | Nic]) -> tuple[list[Place], Place]:
    """Return a tree for each host bridge, and a place outside of them for devices that are not on the bus.

    The kernel lists a switch as a bridge towards the root with a bridge towards each device below it: it becomes one
    place. The port of the processor that a device or a switch is plugged into becomes none, unless several hang from
    it. The functions of one network adapter share a place.
    """
    host_bridges: dict[str, Place] = {}
    place_of: dict[str, Place] = {}
    loose = Place(PcieKind.HOST_BRIDGE)
    for device in devices:
        function = device_at.get(device.bus_id or "")
        if function is None:
            loose.devices.append(device)
            continue
        is_nic = isinstance(device, Nic)
        key = function.bus_id.partition(".")[0] if is_nic else function.bus_id
        if key not in place_of:
            above = host_bridges.setdefault(function.host_bridge or "", Place(PcieKind.HOST_BRIDGE))
            if above.numa_node is None:
                above.numa_node = function.numa_node
            for bridge in function.ancestors[:1] + function.ancestors[1::2]:
                if bridge not in place_of:
                    speed_gbit_s = device_at[bridge].link_gbit_s if bridge in device_at else None
                    place_of[bridge] = Place(PcieKind.SWITCH, bridge, speed_gbit_s)
                    above.children.append(place_of[bridge])
                above = place_of[bridge]
            place_of[key] = Place(PcieKind.NIC if is_nic else PcieKind.GPU, function.bus_id, function.link_gbit_s)
            above.children.append(place_of[key])
        place_of[key].devices.append(device)
    trees = [host_bridges[name] for name in sorted(host_bridges)]
    for tree in trees:
        tree.children = [
            place for port in tree.children for place in (port.children if len(port.children) == 1 else [port])
        ]
    return trees, loose


def _nvlinks(nvml: NvmlFacts, a: Gpu, b: Gpu) -> Link | None:
    """Return bonded NVLinks of two GPUs: direct ones, or as many as both have to switches, which reach every GPU."""
    of_a, of_b = nvml.nvlinks.get(a.index, ()), nvml.nvlinks.get(b.index, ())
    direct = [link for link in of_a if link.peer_bus_id is not None and link.peer_bus_id == b.bus_id]
    bonded = direct or min(([link for link in links if link.is_to_switch] for links in (of_a, of_b)), key=len)
    if not bonded:
        return None
    return Link(a.id, b.id, f"NV{len(bonded)}", sum(all_known(link.speed_gbit_s for link in bonded)) or None)
