"""The ports of this machine's network adapters, out of all of Linux's interfaces.

A port may be seen twice, as a verbs device (mlx5_0) and as an interface (ens1np0): it is one NIC under the verbs
device's name. Interfaces that do not lead to another node by themselves are left out: those that the kernel makes (lo,
docker0, veth, bonds, VLANs), ports that are down, USB, representors, and virtual functions beside their physical one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from isthmus.topology.discovery.sysfs import Facts, Interface, PciDevice, RdmaPort
from isthmus.topology.machine import RDMA, Nic, NicKind
from isthmus.topology.tree import UNNUMBERED

#: By the hardware type of an interface: ARPHRD_ETHER, ARPHRD_INFINIBAND; what is not known may be one.
_KIND_OF = {1: NicKind.ETHERNET, 32: NicKind.INFINIBAND, None: NicKind.UNKNOWN}


def find_nics(facts: Facts) -> tuple[list[Nic], list[str]]:
    """Return NICs, verbs devices first, each kind by name in natural order, and notes on those left out."""
    device_at = {device.bus_id: device for device in facts.pci}
    left_out: list[str] = []
    nics = list(_verbs_nics(facts, device_at, left_out))
    nics += _interface_nics(facts, device_at, left_out)
    nics = _without_virtual_functions(nics, device_at)
    nics.sort(key=lambda nic: (nic.kind not in RDMA, _natural(nic.name or "")))
    nics = [replace(nic, index=index) for index, nic in enumerate(nics)]
    return nics, [f"left out: {', '.join(left_out)}"] if left_out else []


def _verbs_nics(facts: Facts, device_at: dict[str, PciDevice], left_out: list[str]) -> Iterator[Nic]:
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
    if device is not None and device.is_efa:
        return NicKind.EFA
    if port.link_layer == "InfiniBand":
        return NicKind.INFINIBAND
    if port.link_layer == "Ethernet":
        return NicKind.ETHERNET if port.is_iwarp else NicKind.ROCE
    return NicKind.UNKNOWN


def _interface_nics(facts: Facts, device_at: dict[str, PciDevice], left_out: list[str]) -> Iterator[Nic]:
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
    interface: Interface, facts: Facts, device_at: dict[str, PciDevice], taken: dict[tuple[str, int], str]
) -> str | None:
    """Return why an interface is no NIC of its own; empty: for a reason that needs no note; None: it is one."""
    if interface.is_virtual or interface.is_representor or _is_seen_as_verbs(interface, facts):
        return ""
    device = device_at.get(interface.bus_id or "")
    if interface.is_usb or (device is not None and not device.is_network_adapter):
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


def _without_virtual_functions(nics: list[Nic], device_at: dict[str, PciDevice]) -> list[Nic]:
    """Drop virtual functions whose physical function is there: they share its port."""
    present = {nic.bus_id for nic in nics}
    physical_of = {bus_id: device.physical_function for bus_id, device in device_at.items() if device.physical_function}
    return [nic for nic in nics if physical_of.get(nic.bus_id or "", "") not in present]


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts mlx5_2 before mlx5_10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
