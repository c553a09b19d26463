"""A machine while it is read: devices that may have no number yet, in a PCIe tree as the source has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from isthmus.topology.machine import MOST_GPUS, MOST_NICS, Gpu, Nic, PcieKind, PcieNode, check_number

#: The index of a device to which its source gives no number.
UNNUMBERED = -1


@dataclass(eq=False)
class Place:
    """A host bridge, a bridge or switch, or devices: a GPU or the ports of a NIC."""

    kind: PcieKind
    bus_id: str | None = None
    link_speed_gbit_s: float | None = None
    numa_node: int | None = None
    devices: list[Any] = field(default_factory=list)
    children: list[Place] = field(default_factory=list)

    def walk(self) -> Iterator[Place]:
        """This place and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def finish(self) -> PcieNode | None:
        """The place with all below it, once devices have numbers. None: no device is left in it."""
        children = tuple(place for child in self.children if (place := child.finish()))
        if not children and not self.devices:
            return None
        ids = tuple(device.id for device in self.devices)
        return PcieNode(self.kind, self.bus_id, ids, self.link_speed_gbit_s, self.numa_node, children)


def number_devices(roots: Sequence[Place], notes: list[str]) -> tuple[tuple[Gpu, ...], tuple[Nic, ...]]:
    """Give each device its index, in its place as well: the source's, where all have one of their own; else by bus id.

    They get the NUMA node of their root, too. TopologyError: there are more than a machine may have.
    """
    return _numbered(roots, Gpu, MOST_GPUS, notes), _numbered(roots, Nic, MOST_NICS, notes)


_Device = TypeVar("_Device", Gpu, Nic)


def _numbered(roots: Sequence[Place], kind: type[_Device], most: int, notes: list[str]) -> tuple[_Device, ...]:
    slots = [
        (place, slot, replace(device, numa_node=root.numa_node))
        for root in roots
        for place in root.walk()
        for slot, device in enumerate(place.devices)
        if isinstance(device, kind)
    ]
    what = f"{kind.__name__.upper()}s"
    check_number(len(slots), most, what)
    indices = {device.index for _, _, device in slots}
    if UNNUMBERED in indices or len(indices) < len(slots):
        if len(slots) > 1:
            notes.append(f"{what} are numbered by rising bus id, as their drivers do")
        slots.sort(key=lambda each: each[2].bus_id or "~")
        slots = [(place, slot, replace(device, index=index)) for index, (place, slot, device) in enumerate(slots)]
    slots.sort(key=lambda each: each[2].index)
    for place, slot, device in slots:
        place.devices[slot] = device
    return tuple(device for _, _, device in slots)


def fold_ports(host_bridge: Place) -> None:
    """Turn a tree of bridges, as the kernel lists them, into one of switches.

    A switch is a bridge towards the root with a bridge towards each device below it: it becomes one place. The port of
    the processor that a device or a switch is plugged into becomes none, unless several hang from it.
    """
    host_bridge.children = [place for port in host_bridge.children for place in _below_root_port(port)]


def _below_root_port(port: Place) -> list[Place]:
    if port.kind is not PcieKind.SWITCH:
        return [port]
    places = [_folded_switch(child) for child in port.children]
    if len(places) <= 1:
        return places
    port.children = places
    return [port]


def _folded_switch(place: Place) -> Place:
    if place.kind is PcieKind.SWITCH:
        below: list[Place] = []
        for child in place.children:
            below += child.children if child.kind is PcieKind.SWITCH else [child]
        place.children = [_folded_switch(child) for child in below]
    return place
