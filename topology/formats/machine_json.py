"""Reads a machine from its JSON."""

from __future__ import annotations

from typing import Any

from isthmus.topology.machine import (
    MOST_GPUS,
    MOST_NICS,
    MOST_NUMA_NODES,
    Machine,
    TopologyError,
    farness,
    paths_to_devices,
)
from isthmus.topology.records import read_record


def parse_machine_json(values: Any) -> Machine:
    """The machine that `Machine.to_json` gave.

    TopologyError: a value is missing, of the wrong type or out of range, devices have no number of their own, or links
    are not one for each pair of them.
    """
    try:
        machine = read_record(Machine, values, "machine")
    except ValueError as error:
        raise TopologyError(str(error)) from None
    for name, items, most in (
        ("sockets", machine.sockets, MOST_NUMA_NODES),
        ("numa_nodes", machine.numa_nodes, MOST_NUMA_NODES),
        ("gpus", machine.gpus, MOST_GPUS),
        ("nics", machine.nics, MOST_NICS),
    ):
        if len(items) > most:
            raise TopologyError(f"{name}: {len(items)} are more than the {most} that a machine may have")
        if len({item.index for item in items}) != len(items):  # type: ignore[attr-defined]
            raise TopologyError(f"{name}: an index is given twice")
    devices = machine.device_ids
    expected = {(a, b) for place, a in enumerate(devices) for b in devices[place + 1 :]}
    seen = {(link.a, link.b) for link in machine.links}
    if len(machine.links) != len(seen):
        raise TopologyError("links: a pair is named twice")
    if wrong := sorted(expected ^ seen):
        what = "missing" if wrong[0] in expected else "no pair of devices in the order of the matrix"
        raise TopologyError(f"links: {wrong[0][0]}-{wrong[0][1]} is {what}")
    for link in machine.links:
        if farness(link.kind) == 0:
            raise TopologyError("links: 'X' is for a device and itself")
    if unknown := set(paths_to_devices(machine.pcie)) - set(devices):
        raise TopologyError(f"pcie: '{min(unknown)}' is no device of the machine")
    return machine
