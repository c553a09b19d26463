"""The byte counters of a machine's own NICs.

Interfaces count what goes through the kernel (sockets, so all of Gloo), ports of verbs devices what goes past it
(NCCL over InfiniBand, RoCE, EFA). A port of InfiniBand counts both, so its interface (IPoIB) is left out.

Any attribute in /sys may be missing, unreadable or nonsense: it is empty then.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from isthmus.benchmarks.simulate.network import interfaces_sent_bytes

_ARPHRD_INFINIBAND = "32"
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: The end of a virtual function's wire in the adapter's own switch.
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
#: What a port has sent, and the bytes in a unit of it. The second is EFA's.
_PORT_COUNTERS = (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1))


def find_counter(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> Callable[[], int] | None:
    """What reads the bytes that all NICs of this process's network namespace have sent.

    None: a port that is up has no counter, or there is no NIC. The reader raises OSError, KeyError or ValueError if a
    counter has gone. A copy of the two trees describes another machine.
    """
    devices = [device for device in _children(sys / "class/infiniband") if _function_of(device)]  # not Soft-RoCE
    ports = [port for device in devices for port in _children(device / "ports") if not _is_down(port)]
    counters = [_port_counter(port) for port in ports]
    infiniband = [_function_of(port.parents[1]) for port in ports if _read(port / "link_layer") == "InfiniBand"]
    names = _interfaces(sys / "class/net", list(interfaces_sent_bytes(proc)), infiniband)
    if None in counters or not (names or counters):
        return None

    def read() -> int:
        sent = interfaces_sent_bytes(proc)
        return sum(sent[name] for name in names) + sum(counter() for counter in counters if counter)

    return read


def _is_down(port: Path) -> bool:
    state = _read(port / "state")
    return bool(state) and "ACTIVE" not in state


def _port_counter(port: Path) -> Callable[[], int] | None:
    for name, unit_bytes in _PORT_COUNTERS:
        if _read(port / name).isdecimal():
            return lambda: int((port / name).read_text()) * unit_bytes
    return None


def _interfaces(folder: Path, known: list[str], infiniband: list[str]) -> list[str]:
    """Name the interfaces to add up: the adapters' own where any are seen, else all that stand on no other.

    A bond, a bridge or a VLAN counts again what the interfaces below it count. infiniband: functions whose ports count.
    """
    names = [name for name in known if name != "lo"]
    paths = {path.name: path for path in _children(folder) if path.is_dir()}  # bonding_masters is a file
    # /sys shows the interfaces of the network namespace that mounted it, which need not be this one.
    if set(names) != paths.keys() - {"lo"}:
        return names

    def is_virtual(path: Path) -> bool:
        made_by_kernel = ("devices", "virtual") in pairwise(path.resolve().parts)
        return made_by_kernel or bool(_REPRESENTOR.match(_read(path / "phys_port_name")))

    def counts_again(path: Path) -> bool:
        lower = {child.name.removeprefix("lower_") for child in _children(path) if child.name.startswith("lower_")}
        is_ipoib = _read(path / "type") == _ARPHRD_INFINIBAND and _function_of(path) in infiniband
        return bool(lower & set(names)) or is_ipoib

    adapters = [name for name in names if not is_virtual(paths[name])]
    return [name for name in adapters or names if not counts_again(paths[name])]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _function_of(path: Path) -> str:
    """The bus id of the PCI function that something belongs to; "" if to none."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):  # a link that leads nowhere, or in circles
        return ""
    return next((part for part in reversed(parts) if _BUS_ID.fullmatch(part)), "")
