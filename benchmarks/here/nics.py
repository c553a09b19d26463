"""The byte counters of a machine's own NICs.

Interfaces count what goes through the kernel (sockets, so all of Gloo), ports of verbs devices what goes past it
(NCCL over InfiniBand, RoCE, EFA). A port of InfiniBand counts both, so its interface (IPoIB) is left out.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from isthmus.benchmarks.here.sysfs import Interface, RdmaPort, Roots, interfaces, rdma_ports
from isthmus.benchmarks.simulate.links import interfaces_sent_bytes

_LOOPBACK = "lo"
_ARPHRD_INFINIBAND = "32"
#: What a port has sent, and the bytes in a unit of it. The second is EFA's.
_PORT_COUNTERS = (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1))


def find_counter(roots: Roots | None = None) -> Callable[[], int] | None:
    """What reads the bytes that all NICs of this process's network namespace have sent.

    None: a port that is up has no counter, or there is no NIC. The reader raises OSError, KeyError or ValueError if a
    counter has gone.
    """
    roots = roots or Roots()
    up = [
        port for port in rdma_ports(roots.sys / "class/infiniband") if port.bus_id is not None and not port.is_down
    ]  # not Soft-RoCE
    counters = [_port_counter(roots.sys / "class/infiniband" / port.device / "ports" / str(port.port)) for port in up]
    names = tuple(_interfaces(roots, up))
    if None in counters or not (names or counters):
        return None

    def read() -> int:
        sent = interfaces_sent_bytes(roots.proc)
        return sum(sent[name] for name in names) + sum(counter() for counter in counters if counter)

    return read


def _port_counter(folder: Path) -> Callable[[], int] | None:
    for name, unit_bytes in _PORT_COUNTERS:
        try:
            int((folder / name).read_text())
        except (OSError, ValueError):
            continue
        return lambda: int((folder / name).read_text()) * unit_bytes
    return None


def _interfaces(roots: Roots, counted_ports: list[RdmaPort]) -> Iterator[str]:
    """Name the interfaces to add up: the adapters' own where any are seen, else all that stand on no other.

    A bond, a bridge or a VLAN counts again what the interfaces below it count.
    """
    names = [name for name in interfaces_sent_bytes(roots.proc) if name != _LOOPBACK]
    # /sys shows the interfaces of the network namespace that mounted it, which need not be this one.
    described = {each.name: each for each in interfaces(roots.sys / "class/net")}
    if set(names) != described.keys() - {_LOOPBACK}:
        described = {}
    adapters = [each.name for each in described.values() if not (each.is_virtual or each.is_representor)]
    for name in adapters or names:
        interface = described.get(name)
        if interface is None or not (set(interface.lower) & set(names) or _is_ipoib(interface, counted_ports)):
            yield name


def _is_ipoib(interface: Interface, counted_ports: list[RdmaPort]) -> bool:
    return interface.hardware_type == _ARPHRD_INFINIBAND and any(
        port.bus_id == interface.bus_id and port.link_layer == "InfiniBand" for port in counted_ports
    )
