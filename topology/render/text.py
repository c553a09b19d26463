"""A machine as text: its devices, its PCIe tree, their distances, its rails and its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from isthmus.topology.machine import Gpu, Machine, Nic, NicKind, PcieKind, PcieNode, paths_to_devices
from isthmus.topology.rails import Rails
from isthmus.topology.render.overview import Overview, count_models

_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}
#: What people call the kinds.
NIC_KINDS = {
    NicKind.INFINIBAND: "InfiniBand",
    NicKind.ROCE: "RoCE",
    NicKind.ETHERNET: "Ethernet",
    NicKind.EFA: "EFA",
    NicKind.UNKNOWN: "",
}
#: Wide enough for trees and tables: on a narrow terminal a line runs on rather than be cut.
WIDTH = 240
_LEGEND = (
    "NV#: # NVLinks   PIX: one PCIe switch   PXB: several   PHB: one host bridge   "
    "NODE: host bridges of a NUMA node   SYS: NUMA nodes"
)
#: Nodes whose ranks are named one by one, and ranks of each.
_MOST_NAMED = 16


def print_overview(view: Overview, console: Console) -> None:
    """Print everything, for a console of `WIDTH`; wider matrices run on beyond it rather than break."""
    machine = view.machine
    console.print(Text.assemble((machine.name, "bold"), f"  (from {machine.source})"), soft_wrap=True)
    for sentence in _summary(machine):
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    console.print()
    console.print(_tree(machine))
    if len(machine.device_ids) > 1:
        console.print()
        for line in _matrix(machine):
            console.print(line, soft_wrap=True)
        console.print(Text(_LEGEND, "dim"), soft_wrap=True)
    if view.rails.rails:
        console.print()
        console.print(_rails_table(machine, view.rails))
        speed = view.rails.speed_gbit_s
        told = "speed unknown" if speed is None else f"{gbit_s(speed)}, the slowest rail's"
        console.print(Text(f"A rank's way out of its node: {told}"), soft_wrap=True)
    if view.nodes:
        console.print()
        for line in _node_lines(view):
            console.print(line, soft_wrap=True, highlight=False)
    if view.notes:
        console.print(Text("\nNotes", "bold"))
        for note in view.notes:
            console.print(Text(f"- {note}"), soft_wrap=True)


def gbit_s(speed: float | None) -> str:
    """Return "252 Gbit/s"; empty where it is unknown."""
    return "" if speed is None else f"{speed:.4g} Gbit/s"


def describe_gpu(gpu: Gpu) -> str:
    """Return a GPU's properties in one line."""
    fabric = f"NVLink domain {gpu.fabric.cluster}, clique {gpu.fabric.clique}" if gpu.fabric else ""
    return "  ".join(part for part in (gpu.id, gpu.model, gpu.bus_id, fabric) if part)


def describe_nic(nic: Nic) -> str:
    """Return a NIC's properties in one line."""
    parts = (nic.id, nic.name, NIC_KINDS[nic.kind], gbit_s(nic.speed_gbit_s) or "speed unknown", nic.bus_id)
    return "  ".join(part for part in parts if part)


def nic_summary(machine: Machine) -> str:
    """Return "8 x InfiniBand 200 Gbit/s, 2 x Ethernet"."""
    kinds = tuple(f"{NIC_KINDS[nic.kind]} {gbit_s(nic.speed_gbit_s)}".strip() or "NIC" for nic in machine.nics)
    return count_models(kinds) or "no NIC"


def nvlink_summary(machine: Machine) -> str:
    """Return "NV12 between all GPUs, 2400 Gbit/s a pair" or what else holds; empty without NVLinks."""
    pairs = [machine.link(a, b) for a, b in combinations(machine.gpus, 2)]
    joined = [link for link in pairs if link.is_nvlink]
    if not joined:
        return ""
    if len({(link.kind, link.speed_gbit_s) for link in pairs}) == 1:
        speed = f", {gbit_s(joined[0].speed_gbit_s)} a pair" if joined[0].speed_gbit_s else ""
        return f"{joined[0].kind} between all GPUs{speed}"
    return f"NVLinks between {len(joined)} of {len(pairs)} pairs of GPUs"


def _summary(machine: Machine) -> Iterator[str]:
    yield count_models(tuple(socket.model for socket in machine.sockets)) or "processors unknown"
    numa = len(machine.numa_nodes)
    if numa:
        yield f"{numa} NUMA node{'s' if numa > 1 else ''}"
    yield count_models(tuple(gpu.model or "GPU" for gpu in machine.gpus)) or "no GPU"
    yield nic_summary(machine)
    if nvlink := nvlink_summary(machine):
        yield nvlink


def _tree(machine: Machine) -> Tree:
    """Return sockets, their NUMA nodes, and the devices of each where they hang."""
    tree = Tree("PCIe" if machine.pcie else "devices", guide_style="dim")
    label_of = {gpu.id: describe_gpu(gpu) for gpu in machine.gpus} | {nic.id: describe_nic(nic) for nic in machine.nics}
    for numa_node, places, loose in by_numa_node(machine):
        where = _numa_name(machine, numa_node)
        for place in places:
            _add_place(tree, place, label_of, where)
        if loose:
            branch = tree.add(Text(where or "place unknown"))
            for device in loose:
                branch.add(Text(label_of[device.id]))
    return tree


def by_numa_node(machine: Machine) -> list[tuple[int | None, list[PcieNode], list[Gpu | Nic]]]:
    """Return the PCIe trees of each NUMA node, and its devices that are in none; what is in no known node last."""
    in_tree = paths_to_devices(machine.pcie)
    trees: dict[int | None, list[PcieNode]] = {}
    loose: dict[int | None, list[Gpu | Nic]] = {}
    for tree in machine.pcie:
        trees.setdefault(tree.numa_node, []).append(tree)
    for device in machine.devices:
        if device.id not in in_tree:
            loose.setdefault(device.numa_node, []).append(device)
    ordered = sorted(trees | loose, key=lambda index: (index is None, index or 0))
    return [(index, trees.get(index, []), loose.get(index, [])) for index in ordered]


def _numa_name(machine: Machine, index: int | None) -> str:
    node = next((node for node in machine.numa_nodes if node.index == index), None)
    if node is None:
        return "" if index is None else f"NUMA {index}"
    socket = "" if node.socket is None else f"socket {node.socket}, "
    return f"{socket}NUMA {node.index}" + (f" (processors {node.cpus})" if node.cpus else "")


def _add_place(tree: Tree, place: PcieNode, label_of: dict[str, str], where: str) -> None:
    speed = gbit_s(place.link_speed_gbit_s)
    if place.devices:
        for device in place.devices:
            label = Text(label_of[device], "green" if place.kind is PcieKind.GPU else "cyan")
            tree.add(label.append(f"  PCIe {speed}" if speed else "", "dim"))
    else:
        parts = ("host bridge" if place.kind is PcieKind.HOST_BRIDGE else "switch", place.bus_id, where, speed)
        tree = tree.add(Text("  ".join(part for part in parts if part)))
    for child in place.children:
        _add_place(tree, child, label_of, "")


def _matrix(machine: Machine) -> Iterator[Text]:
    """Return lines as `nvidia-smi topo -m` has them, and NUMA nodes at their ends."""
    ids = machine.device_ids
    numa_of = {device.id: device.numa_node for device in machine.devices}
    width = max(map(len, ids)) + 2
    yield Text(" " * width + "".join(one.ljust(width) for one in ids) + "NUMA", "bold")
    for row in ids:
        line = Text(row.ljust(width), "bold")
        for column in ids:
            kind = machine.distance(row, column)
            line.append(kind.ljust(width), _STYLES.get(kind, "bold green"))
        yield line.append("" if numa_of[row] is None else str(numa_of[row]))


def _rails_table(machine: Machine, rails: Rails) -> Table:
    table = Table(title="Rails: the way out of the node for each local index", title_justify="left", box=None)
    for heading in ("local index", "GPU", "NIC", "distance", "ranks sharing it", "Gbit/s"):
        table.add_column(heading, justify="right" if heading in ("ranks sharing it", "Gbit/s") else "left")
    name_of = {nic.id: nic.name for nic in machine.nics}
    for rail in rails.rails:
        table.add_row(
            str(rail.local_index),
            rail.gpu or "-",
            Text(" ".join(part for part in (rail.nic, name_of[rail.nic]) if part)),
            Text(rail.distance or "-", _STYLES.get(rail.distance or "", "")),
            str(rail.num_sharing),
            "unknown" if rail.speed_gbit_s is None else f"{rail.speed_gbit_s:.4g}",
        )
    return table


def _node_lines(view: Overview) -> Iterator[Text]:
    each = f"{view.ranks_per_node} ranks each" if view.ranks_per_node else "nodes of unequal size"
    yield Text.assemble((f"{len(view.nodes)} node{'s' if len(view.nodes) != 1 else ''}", "bold"), f", {each}")
    for node, ranks in enumerate(view.nodes[:_MOST_NAMED]):
        named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if len(ranks) > _MOST_NAMED else "")
        yield Text(f"  node {node}: ranks {named}")
    if len(view.nodes) > _MOST_NAMED:
        yield Text(f"  and {len(view.nodes) - _MOST_NAMED} more")
