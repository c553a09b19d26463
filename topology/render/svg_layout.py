"""Places of devices in the picture of a node: columns for devices of one switch, GPUs above their NICs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from isthmus.topology.machine import Machine, PcieKind, PcieNode
from isthmus.topology.rails import Rails, find_rails


@dataclass(frozen=True)
class Bar:
    """The bar that devices are plugged into: the switches below one port of a host bridge, or the bridge itself.

    Columns count from 0. speed_gbit_s: towards the host bridge.
    """

    label: str
    first: float
    last: float
    speed_gbit_s: float | None


@dataclass(frozen=True)
class Area:
    """Everything of one NUMA node. numa_node: None where it is not known."""

    numa_node: int | None
    first: float
    last: float


@dataclass
class Layout:
    """Where everything stands, in columns. tops: ids of GPUs, or "rank 0" where there are none.

    bar_of: what a device is plugged into, where that is known.
    """

    num_columns: float = 0
    tops: dict[str, float] = field(default_factory=dict)
    nics: dict[str, float] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)
    bar_of: dict[str, Bar] = field(default_factory=dict)


def lay_out(machine: Machine, rails: Rails) -> Layout:
    """Place all devices of a machine."""
    layout = Layout()
    numa_of = {device.id: device.numa_node for device in machine.devices}
    trees = [(_numa_of_tree(tree, numa_of), tree) for tree in sorted(machine.pcie, key=_first_device)]
    in_tree = {device for _, tree in trees for device in _devices_below(tree)}
    loose = [device for device in machine.device_ids if device not in in_tree]
    for numa_node in sorted({numa_of[device] for device in loose} | {numa_node for numa_node, _ in trees}, key=_last):
        start = layout.num_columns
        for of_tree, tree in trees:
            if of_tree == numa_node:
                _place_tree(layout, tree)
        _place_loose(layout, [device for device in loose if numa_of[device] == numa_node], machine)
        if layout.num_columns > start:
            layout.areas.append(Area(numa_node, start, layout.num_columns))
    if not machine.gpus:
        _place_ranks(layout, rails)
    return layout


def _numa_of_tree(tree: PcieNode, numa_of: dict[str, int | None]) -> int | None:
    if tree.numa_node is not None:
        return tree.numa_node
    return next((numa_of[device] for device in _devices_below(tree)), None)


def _devices_below(place: PcieNode) -> list[str]:
    return [device for below in place.walk() for device in below.devices]


def _last(index: int | None) -> tuple[bool, int]:
    """Sorts what is not known behind everything else."""
    return index is None, index or 0


def _first_device(place: PcieNode) -> tuple[bool, int]:
    """Sorts places by their lowest GPU; those without one by their lowest NIC, behind all others."""
    devices = _devices_below(place)
    gpus = [int(device[3:]) for device in devices if device.startswith("GPU")]
    return not gpus, min(gpus or [int(device[3:]) for device in devices], default=0)


def _place_tree(layout: Layout, tree: PcieNode) -> None:
    """Place what is below a host bridge: what each of its ports leads to, then what is plugged into it directly."""
    ports = sorted((port for port in tree.children if not port.devices), key=_first_device)
    for port in ports:
        num_switches = sum(place.kind is PcieKind.SWITCH for place in port.walk())
        label = "switch" if num_switches == 1 else f"{num_switches} switches"
        _place_below(layout, _devices_below(port), label, port.link_speed_gbit_s)
    direct = [device for port in tree.children for device in port.devices]
    if direct:
        _place_below(layout, direct, "host bridge", None)


def _place_below(layout: Layout, devices: Sequence[str], label: str, speed_gbit_s: float | None) -> None:
    """Place devices over and under one bar, by rising index."""
    ordered = sorted(devices, key=lambda device: int(device[3:]))
    gpus = [device for device in ordered if device.startswith("GPU")]
    nics = [device for device in ordered if device.startswith("NIC")]
    start, end = layout.num_columns, layout.num_columns + max(len(gpus), len(nics))
    bar = Bar(label, start, end, speed_gbit_s)
    layout.bars.append(bar)
    layout.bar_of.update(dict.fromkeys(devices, bar))
    _spread(layout.tops, gpus, start, end)
    _spread(layout.nics, nics, start, end)
    layout.num_columns = end


def _spread(placed: dict[str, float], devices: Sequence[str], start: float, end: float) -> None:
    for position, device in enumerate(devices):
        placed[device] = start + (position + 0.5) * (end - start) / len(devices)


def _place_loose(layout: Layout, devices: Iterable[str], machine: Machine) -> None:
    """Place devices of which only distances are known: GPUs in order, NICs below the GPUs that are nearest to them."""
    gpus_of: dict[str, list[str]] = {}
    for rail in find_rails(machine).rails:
        gpus_of.setdefault(rail.nearest.nic, []).append(rail.gpu or "")
    nics = []
    for device in devices:
        if device.startswith("GPU"):
            layout.tops[device] = layout.num_columns + 0.5
            layout.num_columns += 1
        else:
            nics.append(device)
    for nic in nics:
        above = [layout.tops[gpu] for gpu in gpus_of.get(nic, []) if gpu in layout.tops]
        if above:
            layout.nics[nic] = sum(above) / len(above)
        else:
            layout.nics[nic] = layout.num_columns + 0.5
            layout.num_columns += 1


def _place_ranks(layout: Layout, rails: Rails) -> None:
    """Place ranks of a machine without GPU, over its whole width."""
    num_ranks = max(len(rails.rails), 1)
    layout.num_columns = max(layout.num_columns, num_ranks)
    _spread(layout.tops, [f"rank {rank}" for rank in range(num_ranks)], 0, layout.num_columns)
