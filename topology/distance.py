"""Distances between devices, from the PCIe tree, NUMA nodes and NVLinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from isthmus.topology.machine import Gpu, Link, Nic, PcieKind, PcieNode


@dataclass(frozen=True)
class NvLinks:
    """Bonded NVLinks between two GPUs, direct or through switches. speed_gbit_s: of all, in one direction."""

    count: int
    speed_gbit_s: float | None


def link_devices(
    gpus: Sequence[Gpu],
    nics: Sequence[Nic],
    pcie: Sequence[PcieNode],
    nvlinks: Mapping[tuple[int, int], NvLinks],
    num_numa_nodes: int,
) -> tuple[Link, ...]:
    """A link for each pair of devices, in the order of `Machine.links`.

    nvlinks: by indices of the two GPUs, the lower first. num_numa_nodes: where there is one only, devices under
    different host bridges are in it, even if the source does not say so.
    """
    places = _Places(pcie, num_numa_nodes)
    devices: list[Gpu | Nic] = [*gpus, *nics]
    links = []
    for a, b in combinations(devices, 2):
        joined = nvlinks.get((a.index, b.index)) if isinstance(a, Gpu) and isinstance(b, Gpu) else None
        if joined:
            links.append(Link(a.id, b.id, f"NV{joined.count}", joined.speed_gbit_s))
        else:
            links.append(places.link(a, b))
    return tuple(links)


class _Places:
    """Where devices hang in the PCIe tree: the places from the host bridge down to each."""

    def __init__(self, pcie: Sequence[PcieNode], num_numa_nodes: int) -> None:
        self._one_numa_node = num_numa_nodes <= 1
        self._path_to: dict[str, tuple[PcieNode, ...]] = {}
        for tree in pcie:
            self._enter(tree, ())

    def _enter(self, place: PcieNode, above: tuple[PcieNode, ...]) -> None:
        path = (*above, place)
        for device in place.devices:
            self._path_to[device] = path
        for child in place.children:
            self._enter(child, path)

    def link(self, a: Gpu | Nic, b: Gpu | Nic) -> Link:
        """Over PCIe."""
        path_a, path_b = self._path_to.get(a.id, ()), self._path_to.get(b.id, ())
        shared = 0
        while shared < min(len(path_a), len(path_b)) and path_a[shared] is path_b[shared]:
            shared += 1
        if shared == 0:
            kind = "NODE" if self._in_one_numa_node(a, b) else "SYS"
        elif shared == 1 and path_a[0].kind is PcieKind.HOST_BRIDGE:
            kind = "PHB"
        else:
            # The last shared place is a switch, or the adapter itself; below it come other switches and the devices.
            kind = "PIX" if max(len(path_a), len(path_b)) - shared <= 1 else "PXB"
        is_known = path_a and path_b and kind != "SYS"
        return Link(a.id, b.id, kind, _slowest(path_a[shared:] + path_b[shared:]) if is_known else None)

    def _in_one_numa_node(self, a: Gpu | Nic, b: Gpu | Nic) -> bool:
        if a.numa_node is None or b.numa_node is None:
            return self._one_numa_node
        return a.numa_node == b.numa_node


def _slowest(way: Sequence[PcieNode]) -> float | None:
    """The slowest link from these places towards the root; None where one is unknown, or there is none."""
    speeds = [place.link_speed_gbit_s for place in way if place.kind is not PcieKind.HOST_BRIDGE]
    known = [speed for speed in speeds if speed is not None]
    return min(known) if known and len(known) == len(speeds) else None
