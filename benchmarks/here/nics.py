"""The byte counters of a machine's own NICs.

Interfaces count what goes through the kernel (sockets, so all of Gloo), ports of verbs devices what goes past it
(NCCL over InfiniBand, RoCE, EFA). A port of InfiniBand counts both, so its interface (IPoIB) is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.benchmarks.common.interfaces import Traffic, interface_traffic
from isthmus.topology.discovery.sysfs import Facts, Interface, RdmaPort, Roots, read_facts

_LOOPBACK = "lo"
_ARPHRD_INFINIBAND = 32
#: Files of a port: what was sent, what was received, and the bytes in a unit of both. The second is EFA's.
_PORT_COUNTERS = (
    ("counters/port_xmit_data", "counters/port_rcv_data", 4),
    ("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1),
)


@dataclass(frozen=True)
class Nics:
    """The NICs of this machine that count bytes, and those that do not."""

    roots: Roots
    interfaces: tuple[str, ...]
    #: By name: the folder of the port, and which of `_PORT_COUNTERS` it has.
    ports: dict[str, tuple[Path, int]]
    #: NICs that are up and have no counter.
    uncounted: tuple[str, ...]

    @property
    def counted(self) -> tuple[str, ...]:
        """Names of those that count."""
        return (*self.interfaces, *self.ports)

    def read(self) -> Traffic:
        """The sum of all counters. Raises OSError or ValueError if one has gone, or is no number any more."""
        traffic = interface_traffic(self.roots.proc)
        missing = [name for name in self.interfaces if name not in traffic]
        if missing:
            raise ValueError(f"interface {', '.join(missing)} has gone")
        readings = [traffic[name] for name in self.interfaces]
        readings += [_read_port(folder, kind) for folder, kind in self.ports.values()]
        return Traffic(sum(each.sent for each in readings), sum(each.received for each in readings))


def find_nics(roots: Roots | None = None) -> Nics:
    """Find the NICs that this process's network namespace sees, and their counters."""
    roots = roots or Roots()
    facts = read_facts(roots)
    ports: dict[str, tuple[Path, int]] = {}
    uncounted = []
    for port in facts.rdma_ports:
        if port.bus_id is None or port.is_down:  # Soft-RoCE goes through an interface
            continue
        name = f"{port.device}:{port.port}"
        folder = roots.sys / "class/infiniband" / port.device / "ports" / str(port.port)
        kind = next((kind for kind in range(len(_PORT_COUNTERS)) if _counts(folder, kind)), None)
        if kind is None:
            uncounted.append(name)
        else:
            ports[name] = (folder, kind)
    counted = [port for port in facts.rdma_ports if f"{port.device}:{port.port}" in ports]
    interfaces = tuple(_interfaces(roots, facts, counted))
    if not interfaces and not ports and not uncounted:
        uncounted.append("none is seen but lo")
    return Nics(roots, interfaces, ports, tuple(uncounted))


def _interfaces(roots: Roots, facts: Facts, counted_ports: list[RdmaPort]) -> Iterator[str]:
    """Name the interfaces to add up: the adapters' own where any are seen, else all that stand on no other.

    A bond, a bridge or a VLAN counts again what the interfaces below it count.
    """
    names = [name for name in interface_traffic(roots.proc) if name != _LOOPBACK]
    described = {each.name: each for each in facts.interfaces} if _is_of_this_namespace(names, facts) else {}
    adapters = [name for name in names if name in described and _is_adapter(described[name])]
    for name in adapters or names:
        interface = described.get(name)
        if interface is None or not (_stands_on_another(interface, names) or _is_ipoib(interface, counted_ports)):
            yield name


def _is_of_this_namespace(names: list[str], facts: Facts) -> bool:
    """Whether /sys shows the interfaces that this process sees: it shows those of the namespace that mounted it."""
    return set(names) == {each.name for each in facts.interfaces} - {_LOOPBACK}


def _is_adapter(interface: Interface) -> bool:
    return not interface.is_virtual and not interface.is_representor


def _stands_on_another(interface: Interface, names: list[str]) -> bool:
    return any(lower in names for lower in interface.lower)


def _is_ipoib(interface: Interface, counted_ports: list[RdmaPort]) -> bool:
    return interface.hardware_type == _ARPHRD_INFINIBAND and any(
        port.bus_id == interface.bus_id and port.link_layer == "InfiniBand" for port in counted_ports
    )


def _counts(folder: Path, kind: int) -> bool:
    try:
        _read_port(folder, kind)
    except (OSError, ValueError):
        return False
    return True


def _read_port(folder: Path, kind: int) -> Traffic:
    sent, received, unit_bytes = _PORT_COUNTERS[kind]
    return Traffic(*(int((folder / name).read_text()) * unit_bytes for name in (sent, received)))
