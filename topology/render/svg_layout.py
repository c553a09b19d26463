"""Places of devices in the picture of a node: columns for devices of one switch, GPUs above their NICs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isthmus.topology.machine import Machine, PcieKind, PcieNode
from isthmus.topology.render.text import by_numa_node


@dataclass(frozen=True)
class Span:
    """A bar that devices are plugged into, or the area of a NUMA node, from column to column, which count from 0.

    speed_gbit_s: of a switch, towards the host bridge.
    """

    label: str
    first: float
    last: float
    speed_gbit_s: float | None = None


@dataclass
class Layout:
    """Where everything stands, in columns. tops: ids of GPUs, or "rank 0" where there are none."""

    num_columns: float = 0
    tops: dict[str, float] = field(default_factory=dict)
    nics: dict[str, float] = field(default_factory=dict)
    bars: list[Span] = field(default_factory=list)
    areas: list[Span] = field(default_factory=list)


def lay_out(machine: Machine, num_ranks: int) -> Layout:
    """Place all devices of a machine, or the ranks above its NICs where it has no GPU."""
    layout = Layout()
    for numa_node, trees, loose in by_numa_node(machine):
        start = layout.num_columns
        for tree in sorted(trees, key=_first_device):
            _place_tree(layout, tree)
        if loose:
            _place_below(layout, [device.id for device in loose], "PCIe", None)
        socket = next((node.socket for node in machine.numa_nodes if node.index == numa_node), None)
        of_socket = "" if socket is None else f"socket {socket}, "
        label = "NUMA ?" if numa_node is None else f"{of_socket}NUMA {numa_node}"
        layout.areas.append(Span(label, start, layout.num_columns))
    if not machine.gpus:
        layout.num_columns = max(layout.num_columns, num_ranks)
        _spread(layout.tops, [f"rank {rank}" for rank in range(num_ranks)], 0, layout.num_columns)
    return layout


def _devices_below(place: PcieNode) -> list[str]:
    return [device for below in place.walk() for device in below.devices]


def _first_device(place: PcieNode) -> tuple[bool, int]:
    """Sorts places by their lowest GPU; those without one by their lowest NIC, behind all others."""
    devices = _devices_below(place)
    gpus = [int(device[3:]) for device in devices if device.startswith("GPU")]
    return not gpus, min(gpus or [int(device[3:]) for device in devices], default=0)


def _place_tree(layout: Layout, tree: PcieNode) -> None:
    """Place what is below a host bridge: what each of its ports leads to, then what is plugged into it directly."""
    for port in sorted((port for port in tree.children if not port.devices), key=_first_device):
        num_switches = sum(place.kind is PcieKind.SWITCH for place in port.walk())
        label = "switch" if num_switches == 1 else f"{num_switches} switches"
        _place_below(layout, _devices_below(port), label, port.link_speed_gbit_s)
    if direct := [device for port in tree.children for device in port.devices]:
        _place_below(layout, direct, "host bridge", None)


def _place_below(layout: Layout, devices: Sequence[str], label: str, speed_gbit_s: float | None) -> None:
    """Place devices over and under one bar, by rising index."""
    ordered = sorted(devices, key=lambda device: int(device[3:]))
    gpus = [device for device in ordered if device.startswith("GPU")]
    nics = [device for device in ordered if device.startswith("NIC")]
    start, end = layout.num_columns, layout.num_columns + max(len(gpus), len(nics))
    layout.bars.append(Span(label, start, end, speed_gbit_s))
    _spread(layout.tops, gpus, start, end)
    _spread(layout.nics, nics, start, end)
    layout.num_columns = end


def _spread(placed: dict[str, float], devices: Sequence[str], start: float, end: float) -> None:
    for position, device in enumerate(devices):
        placed[device] = start + (position + 0.5) * (end - start) / len(devices)
