"""A machine while it is read: the PCIe tree as the source has it, whose devices get numbers and links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeVar

from isthmus.topology.machine import (
    Gpu,
    Link,
    Nic,
    PcieKind,
    PcieNode,
    TopologyError,
    all_known,
    num_shared,
    paths_to_devices,
)

#: The index of a device to which its source gives no number.
UNNUMBERED = -1
#: More GPUs or NICs than this are an error: no machine has them, and pairs of devices grow with the square.
MOST_DEVICES = 256
_Device = TypeVar("_Device", Gpu, Nic)


@dataclass(eq=False)
class Place:
    """A host bridge, a switch, or devices: a GPU or the ports of a NIC."""

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


def number_devices(roots: Sequence[Place], kind: type[_Device], notes: list[str]) -> tuple[_Device, ...]:
    """Give each GPU, or each NIC, its index: the source's, where all have one of their own; else by bus id.

    It gets the NUMA node of its root, too, and so does what stands in its place. TopologyError: there are too many.
    """
    slots = [
        (place, slot, replace(device, numa_node=root.numa_node))
        for root in roots
        for place in root.walk()
        for slot, device in enumerate(place.devices)
        if isinstance(device, kind)
    ]
    what = f"{kind.__name__.upper()}s"
    if len(slots) > MOST_DEVICES:
        raise TopologyError(f"has {len(slots)} {what}, more than the {MOST_DEVICES} that a machine may have")
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


def link_devices(
    gpus: Sequence[Gpu],
    nics: Sequence[Nic],
    pcie: Sequence[PcieNode],
    nvlinks: Callable[[Gpu, Gpu], Link | None],
    num_numa_nodes: int,
) -> tuple[Link, ...]:
    """A link for each pair of devices, in the order of `Machine.links`: of NVLinks, or else over PCIe.

    num_numa_nodes: where there is one only, devices under different host bridges are in it, even if the source does
    not say so.
    """
    path_to = paths_to_devices(pcie)
    devices: list[Gpu | Nic] = [*gpus, *nics]
    links = []
    for a, b in combinations(devices, 2):
        link = nvlinks(a, b) if isinstance(a, Gpu) and isinstance(b, Gpu) else None
        if link is None:
            is_in_one = num_numa_nodes <= 1 if None in (a.numa_node, b.numa_node) else a.numa_node == b.numa_node
            link = Link(a.id, b.id, *_over_pcie(path_to.get(a.id, ()), path_to.get(b.id, ()), is_in_one))
        links.append(link)
    return tuple(links)


def _over_pcie(a: Sequence[PcieNode], b: Sequence[PcieNode], is_in_one_numa_node: bool) -> tuple[str, float | None]:
    """The distance and the speed between two places, by the paths to them; empty ones: not in the tree."""
    shared = num_shared(a, b)
    if shared == 0:
        kind = "NODE" if is_in_one_numa_node else "SYS"
    elif shared == 1:  # the host bridge
        kind = "PHB"
    else:
        # The last shared place is a switch, or the adapter itself; below it come other switches and the devices.
        kind = "PIX" if max(len(a), len(b)) - shared <= 1 else "PXB"
    if not a or not b or kind == "SYS":
        return kind, None
    way = (place for place in (*a[shared:], *b[shared:]) if place.kind is not PcieKind.HOST_BRIDGE)
    return kind, min(all_known(place.link_speed_gbit_s for place in way), default=None)
