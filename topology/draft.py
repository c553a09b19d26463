"""A machine while it is read: devices that have no number yet, in a PCIe tree as the source has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from isthmus.topology.machine import (
    MOST_GPUS,
    MOST_NICS,
    MOST_PCIE_LEVELS,
    Gpu,
    Nic,
    NicKind,
    PcieKind,
    PcieNode,
    TopologyError,
)

_MOST_LINES_NAMED = 3
_MOST_NOTES = 50


class Notes:
    """Assumptions: each kind once, with the lines that caused it."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}

    def add(self, sentence: str, line: int | None = None) -> None:
        """sentence: without the full stop."""
        lines = self._lines.setdefault(sentence, [])
        if line is not None:
            lines.append(line)

    def all(self) -> tuple[str, ...]:
        """For `Machine.notes`."""
        notes = [sentence + _places(lines) for sentence, lines in self._lines.items()]
        more = [f"and {len(notes) - _MOST_NOTES} further assumptions"] if len(notes) > _MOST_NOTES else []
        return tuple(notes[:_MOST_NOTES] + more)


def _places(lines: list[int]) -> str:
    if not lines:
        return ""
    named = ", ".join(str(line) for line in lines[:_MOST_LINES_NAMED])
    more = f" and {len(lines) - _MOST_LINES_NAMED} more" if len(lines) > _MOST_LINES_NAMED else ""
    return f" (line{'s' if len(lines) > 1 else ''} {named}{more})"


@dataclass(eq=False)
class DraftGpu:
    """number: what the source calls it, if it does. compute_capability: 10 x major + minor."""

    bus_id: str
    line: int | None
    number: int | None = None
    model: str | None = None
    compute_capability: int | None = None
    cpu_link_speed_gbit_s: float | None = None
    #: How many links go to a bus id: of a GPU, or of a switch.
    nvlinks_to: dict[str, int] = field(default_factory=dict)
    index: int = -1

    def finish(self, index: int, numa_node: int | None) -> Gpu:
        """The GPU with the number that it got."""
        self.index = index
        return Gpu(index, self.bus_id, self.model, numa_node, None, self.cpu_link_speed_gbit_s)


@dataclass(eq=False)
class DraftNic:
    """bus_id: None for one that is not on PCIe."""

    bus_id: str | None
    line: int | None
    number: int | None = None
    name: str | None = None
    kind: NicKind = NicKind.UNKNOWN
    speed_gbit_s: float | None = None
    index: int = -1

    def finish(self, index: int, numa_node: int | None) -> Nic:
        """The NIC with the number that it got."""
        self.index = index
        return Nic(index, self.name, self.bus_id, self.kind, self.speed_gbit_s, numa_node)


@dataclass(eq=False)
class DraftPlace:
    """A host bridge, a bridge or switch, or devices: GPUs or the ports of a NIC."""

    kind: PcieKind
    bus_id: str | None = None
    link_speed_gbit_s: float | None = None
    numa_node: int | None = None
    gpus: list[DraftGpu] = field(default_factory=list)
    nics: list[DraftNic] = field(default_factory=list)
    children: list[DraftPlace] = field(default_factory=list)

    def walk(self) -> Iterator[DraftPlace]:
        """This place and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def finish(self) -> PcieNode | None:
        """The place with all below it, once devices have numbers. None: no device is left in it."""
        children = tuple(place for child in self.children if (place := child.finish()))
        devices = (*(f"GPU{gpu.index}" for gpu in self.gpus), *(f"NIC{nic.index}" for nic in self.nics))
        if not children and not devices:
            return None
        return PcieNode(self.kind, self.bus_id, devices, self.link_speed_gbit_s, self.numa_node, children)


_Draft = TypeVar("_Draft", DraftGpu, DraftNic)


def number_devices(roots: list[DraftPlace], notes: Notes) -> tuple[tuple[Gpu, ...], tuple[Nic, ...]]:
    """Give each device its index: the source's number, where all have one of their own; else by rising bus id.

    TopologyError: there are more than a machine may have.
    """
    numa_of: dict[DraftGpu | DraftNic, int | None] = {}
    for root in roots:
        for place in root.walk():
            devices: list[DraftGpu | DraftNic] = [*place.gpus, *place.nics]
            numa_of |= dict.fromkeys(devices, root.numa_node)
    gpus = _in_order([device for device in numa_of if isinstance(device, DraftGpu)], "GPUs", MOST_GPUS, notes)
    nics = _in_order([device for device in numa_of if isinstance(device, DraftNic)], "NICs", MOST_NICS, notes)
    return (
        tuple(gpu.finish(index, numa_of[gpu]) for index, gpu in gpus),
        tuple(nic.finish(index, numa_of[nic]) for index, nic in nics),
    )


def _in_order(devices: list[_Draft], what: str, most: int, notes: Notes) -> list[tuple[int, _Draft]]:
    if len(devices) > most:
        raise TopologyError(f"has {len(devices)} {what}, more than the {most} that a machine may have")
    numbers = {device.number for device in devices}
    if None not in numbers and len(numbers) == len(devices):
        return sorted(((device.number or 0, device) for device in devices), key=lambda item: item[0])
    if len(devices) > 1:
        notes.add(f"{what} are numbered by rising bus id, as their drivers do")
    return list(enumerate(sorted(devices, key=lambda device: device.bus_id or "~")))


def check_bus_ids(named: Iterable[tuple[str, int | None]]) -> None:
    """TopologyError: two devices have one bus id."""
    seen: dict[str, int | None] = {}
    for bus_id, line in named:
        if bus_id in seen:
            first = "" if seen[bus_id] is None else f", first in line {seen[bus_id]}"
            raise TopologyError(f"bus id {bus_id} is given twice{first}", line=line)
        seen[bus_id] = line


def fold_ports(host_bridge: DraftPlace) -> None:
    """Turn a tree of bridges, as the kernel lists them, into one of switches.

    A switch is a bridge towards the root with a bridge towards each device below it: it becomes one place. The port of
    the processor that a device or a switch is plugged into becomes none, unless several hang from it.
    """
    host_bridge.children = [place for port in host_bridge.children for place in _below_root_port(port)]


def _below_root_port(port: DraftPlace) -> list[DraftPlace]:
    if port.kind is not PcieKind.SWITCH:
        return [port]
    places = [_folded_switch(child) for child in port.children]
    if len(places) <= 1:
        return places
    port.children = places
    return [port]


def _folded_switch(place: DraftPlace) -> DraftPlace:
    if place.kind is PcieKind.SWITCH:
        below: list[DraftPlace] = []
        for child in place.children:
            below += child.children if child.kind is PcieKind.SWITCH else [child]
        place.children = [_folded_switch(child) for child in below]
    return place


Checked = TypeVar("Checked")


def at_line(line: int | None, read: Callable[[], Checked]) -> Checked:
    """What `read` gives; a TopologyError of it that names no line gets this one."""
    try:
        return read()
    except TopologyError as error:
        raise error if error.line is not None else TopologyError(error.what, line=line) from None


def check_depth(depth: int, line: int | None) -> None:
    """TopologyError: a place nests deeper than any real PCIe tree."""
    if depth > MOST_PCIE_LEVELS:
        raise TopologyError(f"PCIe devices nest more than {MOST_PCIE_LEVELS} deep", line=line)
