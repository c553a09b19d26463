"""What holds of every machine, whether it was read from a file or found."""

from __future__ import annotations

from itertools import combinations

from isthmus.topology.machine import Machine, farness, paths_to_devices


def check(machine: Machine) -> None:
    """A link for each pair of devices, in order, and no other device in the PCIe tree."""
    assert [(link.a, link.b) for link in machine.links] == list(combinations(machine.device_ids, 2))
    assert set(paths_to_devices(machine.pcie)) <= set(machine.device_ids)
    for link in machine.links:
        assert machine.distance(link.b, link.a) == link.kind
        assert farness(link.kind) > 0
        assert link.speed_gbit_s is None or link.speed_gbit_s > 0
