"""Distances between devices, from the PCIe tree, NUMA nodes and NVLinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from isthmus.topology.machine import Gpu, Link, Nic, PcieKind, PcieNode, num_shared, paths_to_devices


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
    path_to = paths_to_devices(pcie)
    devices: list[Gpu | Nic] = [*gpus, *nics]
    links = []
    for a, b in combinations(devices, 2):
        joined = nvlinks.get((a.index, b.index)) if isinstance(a, Gpu) and isinstance(b, Gpu) else None
        if joined:
            links.append(Link(a.id, b.id, f"NV{joined.count}", joined.speed_gbit_s))
        else:
            is_in_one = num_numa_nodes <= 1 if None in (a.numa_node, b.numa_node) else a.numa_node == b.numa_node
            links.append(Link(a.id, b.id, *_over_pcie(path_to.get(a.id, ()), path_to.get(b.id, ()), is_in_one)))
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
    return kind, _slowest((*a[shared:], *b[shared:])) if a and b and kind != "SYS" else None


def _slowest(way: Sequence[PcieNode]) -> float | None:
    """The slowest link from these places towards the root; None where one is unknown, or there is none."""
    speeds = [place.link_speed_gbit_s for place in way if place.kind is not PcieKind.HOST_BRIDGE]
    known = [speed for speed in speeds if speed is not None]
    return min(known) if known and len(known) == len(speeds) else None
