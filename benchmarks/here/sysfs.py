"""Network interfaces and ports of verbs devices as Linux reports them under /sys.

Any attribute may be missing, unreadable or nonsense: it is None or empty then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")


@dataclass(frozen=True)
class Roots:
    """Where to look. A copy of these two trees describes another machine."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")


@dataclass(frozen=True)
class Interface:
    """A network interface. bus_id: of the PCI function that it belongs to; None: none.

    is_virtual: made by the kernel alone (lo, docker0, veth, a bond, a VLAN). is_representor: the end of a virtual
    function's wire in the adapter's own switch. lower: interfaces that it stands on.
    """

    name: str
    bus_id: str | None
    is_virtual: bool
    is_representor: bool
    hardware_type: str
    lower: tuple[str, ...]


@dataclass(frozen=True)
class RdmaPort:
    """A port of a verbs device. port counts from 1; link_layer as the kernel spells it: InfiniBand or Ethernet."""

    device: str
    port: int
    bus_id: str | None
    link_layer: str
    is_down: bool


def interfaces(folder: Path) -> Iterator[Interface]:
    """Yield those in a folder like /sys/class/net."""
    for path in _children(folder):
        if path.is_dir():  # bonding_masters is a file
            yield Interface(
                name=path.name,
                bus_id=_function_of(path),
                is_virtual=("devices", "virtual") in pairwise(path.resolve().parts),
                is_representor=bool(_REPRESENTOR.match(_read(path / "phys_port_name"))),
                hardware_type=_read(path / "type"),
                lower=tuple(child.name[6:] for child in _children(path) if child.name.startswith("lower_")),
            )


def rdma_ports(folder: Path) -> Iterator[RdmaPort]:
    """Yield those in a folder like /sys/class/infiniband."""
    for device in _children(folder):
        for port in sorted(
            (one for one in _children(device / "ports") if one.name.isdecimal()), key=lambda one: int(one.name)
        ):
            state = _read(port / "state")
            is_down = bool(state) and "ACTIVE" not in state
            yield RdmaPort(device.name, int(port.name), _function_of(device), _read(port / "link_layer"), is_down)


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


def _function_of(path: Path) -> str | None:
    """Return the bus id of the PCI function that something belongs to."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):  # a link that leads nowhere, or in circles
        return None
    return next((part for part in reversed(parts) if _BUS_ID.fullmatch(part)), None)
