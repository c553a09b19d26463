"""Processors, PCIe devices and network adapters as Linux reports them under /sys and /proc.

Any attribute may be missing, unreadable (an interface that is down refuses `speed`) or nonsense: it is None then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from isthmus.topology import pcie
from isthmus.topology.machine import NumaNode, Socket, printable

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MOST_INDEX = 2**31 - 1
#: Faster than any port: what a driver says of a port whose speed it does not know.
_MOST_PORT_GBIT_S = 10_000.0


@dataclass(frozen=True)
class Roots:
    """Where to look. A recorded copy of these two trees describes another machine."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")


@dataclass(frozen=True)
class PciDevice:
    """A PCI function. ancestors: bus ids of the bridges above it, from the root down.

    class_code: 16 bits, without the programming interface. link_gbit_s: of the link towards the root at its best,
    both ends considered: an idle GPU slows its link down.
    physical_function: the bus id of the function that it is a virtual function of.
    """

    bus_id: str
    host_bridge: str | None
    ancestors: tuple[str, ...]
    class_code: int
    vendor: int | None
    device: int | None
    numa_node: int | None
    link_gbit_s: float | None
    physical_function: str | None


@dataclass(frozen=True)
class Interface:
    """A network interface. bus_id: of the PCI function that it belongs to; None: none.

    is_virtual: made by the kernel alone (lo, docker0, veth, a bond, a VLAN). is_representor: the end of a virtual
    function's wire in the adapter's own switch. port: counts from 0. lower: interfaces that it stands on.
    """

    name: str
    bus_id: str | None
    is_virtual: bool
    is_usb: bool
    is_representor: bool
    hardware_type: int | None
    speed_gbit_s: float | None
    is_down: bool
    port: int
    lower: tuple[str, ...]


@dataclass(frozen=True)
class RdmaPort:
    """A port of a verbs device. port counts from 1; link_layer as the kernel spells it: InfiniBand or Ethernet."""

    device: str
    port: int
    bus_id: str | None
    link_layer: str | None
    speed_gbit_s: float | None
    is_down: bool
    is_iwarp: bool


@dataclass(frozen=True)
class Facts:
    """Everything that was read."""

    sockets: tuple[Socket, ...]
    numa_nodes: tuple[NumaNode, ...]
    pci: tuple[PciDevice, ...]
    interfaces: tuple[Interface, ...]
    rdma_ports: tuple[RdmaPort, ...]
    host_name: str | None


def read_facts(roots: Roots | None = None) -> Facts:
    """Read the trees. Never raises for what is missing in them."""
    roots = roots or Roots()
    sockets, numa_nodes = _sockets_and_memory(roots.sys / "devices/system", cpu_model(roots.proc / "cpuinfo"))
    return Facts(
        sockets=sockets,
        numa_nodes=numa_nodes,
        pci=tuple(_pci_devices(roots.sys / "bus/pci/devices")),
        interfaces=tuple(_interfaces(roots.sys / "class/net")),
        rdma_ports=tuple(_rdma_ports(roots.sys / "class/infiniband")),
        host_name=_read(roots.proc / "sys/kernel/hostname") or None,
    )


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _read(path: Path) -> str | None:
    """Return an attribute: one line of text."""
    text = _read_text(path)
    return None if text is None else printable(text.strip("\0 \t\n"))


def _read_number(path: Path, base: int = 10) -> int | None:
    try:
        return int(_read(path) or "", base)
    except ValueError:
        return None


def _read_index(path: Path) -> int | None:
    """Return a number that counts something; -1 stands for "not known"."""
    number = _read_number(path)
    return number if number is not None and 0 <= number <= _MOST_INDEX else None


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _numbered(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    for child in _children(folder):
        digits = child.name.removeprefix(prefix)
        if child.name.startswith(prefix) and digits.isdecimal() and digits.isascii():
            yield int(digits), child


def _sockets_and_memory(folder: Path, model: str | None) -> tuple[tuple[Socket, ...], tuple[NumaNode, ...]]:
    """Return all sockets and NUMA nodes; a node is in the socket of its first processor."""
    socket_of = {
        index: _read_index(cpu / "topology/physical_package_id") for index, cpu in _numbered(folder / "cpu", "cpu")
    }
    nodes = []
    for index, node in sorted(_numbered(folder / "node", "node")):
        cpus = re.fullmatch(r"(\d{1,9})[\d,-]*", _read(node / "cpulist") or "", re.ASCII)
        nodes.append(NumaNode(index, socket_of.get(int(cpus[1])) if cpus else None, cpus[0] if cpus else None))
    sockets = [
        Socket(index, tuple(node.index for node in nodes if node.socket == index), model)
        for index in sorted({socket for socket in socket_of.values() if socket is not None})
    ]
    return tuple(sockets), tuple(nodes)


def cpu_model(cpuinfo: Path) -> str | None:
    """Return the processor's marketing name; None where the file does not say it."""
    for line in (_read_text(cpuinfo) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "cpu"):  # x86, POWER; Arm names its parts by number only
            return printable(value.strip()) or None
    return None


def _pci_path(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the host bridge and the PCI functions on the way to a device, from the root down."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):  # a link that leads nowhere, or in circles
        return None, ()
    bridge = next((match[1] for part in parts if (match := _HOST_BRIDGE.fullmatch(part))), None)
    return bridge, tuple(part for part in parts if _BUS_ID.fullmatch(part))


def _function_of(path: Path) -> str | None:
    """Return the bus id of the PCI function that something belongs to."""
    _, way = _pci_path(path)
    return way[-1] if way else None


def _pci_devices(folder: Path) -> Iterator[PciDevice]:
    for path in _children(folder):
        if not _BUS_ID.fullmatch(path.name):
            continue
        bridge, way = _pci_path(path)
        ancestors = tuple(bus_id for bus_id in way if bus_id != path.name)
        both = (path, *(folder / port for port in ancestors[-1:]))
        ends = [(_read(end / "max_link_speed") or "", _read(end / "max_link_width") or "") for end in both]
        yield PciDevice(
            bus_id=path.name,
            host_bridge=bridge,
            ancestors=ancestors,
            class_code=(_read_number(path / "class", 16) or 0) >> 8,
            vendor=_read_number(path / "vendor", 16),
            device=_read_number(path / "device", 16),
            numa_node=_read_index(path / "numa_node"),
            link_gbit_s=pcie.link_speed_gbit_s(*ends),
            physical_function=_function_of(path / "physfn"),
        )


def _interfaces(folder: Path) -> Iterator[Interface]:
    for path in _children(folder):
        if not path.is_dir():  # bonding_masters is a file
            continue
        parts = path.resolve().parts
        yield Interface(
            name=printable(path.name),
            bus_id=_function_of(path),
            is_virtual=("devices", "virtual") in pairwise(parts),
            is_representor=bool(_REPRESENTOR.match(_read(path / "phys_port_name") or "")),
            is_usb=any(part.startswith("usb") for part in parts),
            hardware_type=_read_number(path / "type"),
            speed_gbit_s=_port_gbit_s(path / "speed", 1000),
            is_down=_read(path / "operstate") in ("down", "lowerlayerdown", "notpresent"),
            port=_read_index(path / "dev_port") or 0,
            lower=tuple(
                printable(child.name.removeprefix("lower_")) for child in _children(path) if child.name[:6] == "lower_"
            ),
        )


def _rdma_ports(folder: Path) -> Iterator[RdmaPort]:
    for device in _children(folder):
        for number, port in sorted(_numbered(device / "ports", "")):
            state = _read(port / "state")
            yield RdmaPort(
                device=printable(device.name),
                port=number,
                bus_id=_function_of(device),
                link_layer=_read(port / "link_layer"),
                speed_gbit_s=_port_gbit_s(port / "rate"),
                is_down=state is not None and "ACTIVE" not in state,
                is_iwarp=(_read(device / "node_type") or "").startswith("4"),
            )


def _port_gbit_s(attribute: Path, divisor: float = 1) -> float | None:
    """Return the speed of a port; -1 and 4294967295 Mbit/s stand for "not known"."""
    match = _NUMBER.match(_read(attribute) or "")
    speed_gbit_s = float(match[0]) / divisor if match else 0.0
    return speed_gbit_s if 0 < speed_gbit_s <= _MOST_PORT_GBIT_S else None
