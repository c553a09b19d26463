"""What `isthmus topo` shows, as text or JSON: a machine, its rails, and nodes of such machines where they are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from isthmus.group.nodes.islands import advice
from isthmus.group.nodes.node_map import num_ranks_in, ranks_by_value
from isthmus.group.rails import Facts, count, devices_by_id, fast_links_in_words, in_gbit_s, is_fast
from isthmus.plan.assumptions import slowest

if TYPE_CHECKING:
    from isthmus._topology import Machine

#: The version of the JSON.
SCHEMA = 3
#: Ranks that a node map may have here.
_MOST_RANKS = 1 << 20
#: Nodes whose ranks are named one by one, and ranks of each.
_MOST_NAMED = 16
_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}
#: What people call the kinds of NICs.
_KINDS = {"infiniband": "InfiniBand", "roce": "RoCE", "ethernet": "Ethernet", "efa": "EFA"}
_LEGEND = (
    "NV#: # NVLinks   PIX: one PCIe switch   PXB: several   PHB: one host bridge   "
    "NODE: host bridges of a NUMA node   SYS: NUMA nodes"
)


def overview(machine: Machine, nodes_text: str | None) -> Facts:
    """Return a machine with what follows from it, as the JSON has it. nodes_text: as ISTHMUS_NODES takes it.

    Raises ValueError where that is no node map, or has other ranks on a node than the machine has GPUs for.
    """
    facts = machine.facts
    nodes = _nodes_of(nodes_text) if nodes_text else ()
    sizes = {len(ranks) for ranks in nodes}
    domains = {domain for gpu in facts["gpus"] for domain in _domain(gpu)}
    domain_notes = [f"{domain}: where it spans several machines, they are one node" for domain in sorted(domains)]
    if len(sizes) <= 1:
        rails, told = machine.rails(*sizes)
    else:
        rails, told = [], ["nodes of unequal size have no rails: every collective takes the exact path"]
    notes = list(dict.fromkeys((*facts["notes"], *domain_notes, *told)))
    return {"schema": SCHEMA, **facts, "rails": rails, "nodes": nodes, "islands": machine.islands, "notes": notes}


def _nodes_of(text: str) -> tuple[tuple[int, ...], ...]:
    from isthmus.base import native

    num_ranks = num_ranks_in(text)
    if num_ranks > _MOST_RANKS:
        raise ValueError(f"--nodes={text[:40]!r}: {num_ranks} ranks are more than the {_MOST_RANKS} that can be shown")
    try:
        node_of_rank = native.load().parse_nodes(text, num_ranks)
    except ValueError as error:
        raise ValueError(f"--nodes: {error}") from None
    return tuple(tuple(ranks) for _, ranks in sorted(ranks_by_value(range(num_ranks), node_of_rank).items()))


def print_overview(view: Facts, console: Console) -> None:
    """Print everything. Lines of the matrix run on beyond the console's width rather than break."""
    for part in _parts(view):
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(view: Facts) -> Iterator[Text | Tree | Table]:
    blank, devices = Text(), devices_by_id(view)
    yield Text.assemble((view["name"], "bold"), f"  (from {view['source']})")
    yield from (Text(f"  {sentence}") for sentence in _summary(view))
    yield from (blank, _tree(view, devices))
    if len(devices) > 1:
        yield from (blank, *_matrix(view, devices), Text(_LEGEND, "dim"))
    if view["rails"]:
        speed = slowest(rail["speed_gbit_s"] for rail in view["rails"])
        told = "speed unknown" if speed is None else f"{_gbit_s(speed)}, the slowest rail's"
        yield from (blank, _rails_table(view, devices), Text(f"A rank's way out of its node: {told}"))
    if view["nodes"]:
        yield from (blank, *_node_lines(view["nodes"]))
    if view["notes"]:
        yield from (blank, Text("Notes", "bold"), *(Text(f"- {note}") for note in view["notes"]))
    if text := advice(view["islands"]):
        yield from (blank, Text(text))


def _gbit_s(speed: float | None) -> str:
    """Return "252 Gbit/s"; empty where it is unknown."""
    return "" if speed is None else in_gbit_s(speed)


def _domain(gpu: Facts) -> list[str]:
    """Return the multi-node NVLink domain of a GPU, if it is in one."""
    return [f"NVLink domain {gpu['fabric']['cluster']}, clique {gpu['fabric']['clique']}"] if gpu["fabric"] else []


def _line(*parts: str | None) -> str:
    return "  ".join(part for part in parts if part)


def _label(name: str, device: Facts) -> str:
    if name.startswith("GPU"):
        return _line(name, device["model"], device["bus_id"], *_domain(device))
    speed = _gbit_s(device["speed_gbit_s"]) or "speed unknown"
    return _line(name, device["name"], _KINDS.get(device["kind"]), speed, device["bus_id"])


def _summary(machine: Facts) -> Iterator[str]:
    """Yield what the machine has: processors, NUMA nodes, GPUs, NICs, fast links."""
    yield count(socket["model"] or "unknown model" for socket in machine["sockets"]) or "processors unknown"
    numa = len(machine["numa_nodes"])
    if numa:
        yield f"{numa} NUMA node{'s' if numa > 1 else ''}"
    yield count(gpu["model"] or "GPU" for gpu in machine["gpus"]) or "no GPU"
    nics = (f"{_KINDS.get(nic['kind'], '')} {_gbit_s(nic['speed_gbit_s'])}".strip() or "NIC" for nic in machine["nics"])
    yield count(nics) or "no NIC"
    if links := fast_links_in_words(machine):
        yield links


def _tree(machine: Facts, devices: dict[str, Facts]) -> Tree:
    """Return host bridges and the devices that are in none, by NUMA node; what is in no known node comes last."""
    tree = Tree("PCIe" if machine["pcie"] else "devices", guide_style="dim")
    in_tree = {name for place in machine["pcie"] for name in _devices(place)}
    loose = {name: device for name, device in devices.items() if name not in in_tree}
    numa_nodes = {one["numa_node"] for one in (*machine["pcie"], *loose.values())}
    for numa_node in sorted(numa_nodes, key=lambda index: (index is None, index or 0)):
        where = _numa_name(machine, numa_node)
        for place in machine["pcie"]:
            if place["numa_node"] == numa_node:
                _add_place(tree, place, devices, where)
        here = [_label(name, device) for name, device in loose.items() if device["numa_node"] == numa_node]
        if here:
            branch = tree.add(Text(where or "place unknown"))
            for label in here:
                branch.add(Text(label))
    return tree


def _devices(place: Facts) -> Iterator[str]:
    yield from place["devices"]
    for child in place["children"]:
        yield from _devices(child)


def _numa_name(machine: Facts, index: int | None) -> str:
    node = next((node for node in machine["numa_nodes"] if node["index"] == index), None)
    if node is None:
        return "" if index is None else f"NUMA {index}"
    socket = "" if node["socket"] is None else f"socket {node['socket']}, "
    return f"{socket}NUMA {index}" + (f" (processors {node['cpus']})" if node["cpus"] else "")


def _add_place(tree: Tree, place: Facts, devices: dict[str, Facts], where: str) -> None:
    speed = _gbit_s(place["link_speed_gbit_s"])
    if place["devices"]:
        for name in place["devices"]:
            label = Text(_label(name, devices[name]), "green" if place["kind"] == "gpu" else "cyan")
            bus = "C2C" if devices[name].get("c2c_gbit_s") else "PCIe"
            tree.add(label.append(f"  {bus} {speed}" if speed else "", "dim"))
    else:
        tree = tree.add(Text(_line(place["kind"], place["bus_id"], where, speed)))
    for child in place["children"]:
        _add_place(tree, child, devices, "")


def _matrix(machine: Facts, devices: dict[str, Facts]) -> Iterator[Text]:
    """Return lines as `nvidia-smi topo -m` has them, and NUMA nodes at their ends."""
    kinds = {frozenset((link["a"], link["b"])): link["kind"] for link in machine["links"]}
    width = max(map(len, devices)) + 2
    yield Text(" " * width + "".join(name.ljust(width) for name in devices) + "NUMA", "bold")
    for name, device in devices.items():
        line = Text(name.ljust(width), "bold")
        for column in devices:
            kind = "X" if column == name else kinds[frozenset((name, column))]
            line.append(kind.ljust(width), "bold green" if is_fast(kind) else _STYLES[kind])
        yield line.append("" if device["numa_node"] is None else str(device["numa_node"]))


def _rails_table(machine: Facts, devices: dict[str, Facts]) -> Table:
    table = Table(title="Rails: the way out of the node for each local index", title_justify="left", box=None)
    for heading in ("local index", "GPU", "NIC", "distance", "ranks sharing it", "Gbit/s"):
        table.add_column(heading, justify="right" if heading in ("ranks sharing it", "Gbit/s") else "left")
    for rail in machine["rails"]:
        table.add_row(
            str(rail["local_index"]),
            rail["gpu"] or "-",
            Text("  ".join(" ".join(filter(None, (nic, devices[nic]["name"]))) for nic in rail["nics"])),
            Text(rail["distance"] or "-", _STYLES.get(rail["distance"] or "", "")),
            str(rail["num_sharing"]),
            "unknown" if rail["speed_gbit_s"] is None else in_gbit_s(rail["speed_gbit_s"]).split()[0],
        )
    return table


def _node_lines(nodes: Sequence[Sequence[int]]) -> Iterator[Text]:
    sizes = {len(ranks) for ranks in nodes}
    each = f"{sizes.pop()} ranks each" if len(sizes) == 1 else "nodes of unequal size"
    yield Text.assemble((f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}", "bold"), f", {each}")
    for node, ranks in enumerate(nodes[:_MOST_NAMED]):
        named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if len(ranks) > _MOST_NAMED else "")
        yield Text(f"  node {node}: ranks {named}")
    if len(nodes) > _MOST_NAMED:
        yield Text(f"  and {len(nodes) - _MOST_NAMED} more")
