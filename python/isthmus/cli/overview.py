"""What `isthmus topo` shows, as text or JSON: a machine, its rails, and nodes of such machines where they are given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from isthmus.group.nodes.node_map import ranks_by_value
from isthmus.group.rails import count, nvlinks_in_words
from isthmus.plan.sources import slowest

if TYPE_CHECKING:
    from isthmus._topology import Machine

#: The version of the JSON.
SCHEMA = 2
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

#: A machine, or a part of it, as the JSON has it: docs/topology.md.
Facts = dict[str, Any]


@dataclass(frozen=True)
class Overview:
    """A machine with what follows from it. nodes: the ranks of each; none where they were not given.

    notes: the machine's own, then those on rails and nodes.
    """

    machine: Facts
    rails: list[Facts]
    nodes: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]

    def to_json(self) -> Facts:
        """The machine's own JSON, with `schema`, `rails`, `nodes` and all notes."""
        return {"schema": SCHEMA, **self.machine, "rails": self.rails, "nodes": self.nodes, "notes": self.notes}


def overview(machine: Machine, nodes_text: str | None) -> Overview:
    """Put everything together. nodes_text: an option's value, as ISTHMUS_NODES takes it.

    Raises ValueError where it is no node map, or has other ranks on a node than the machine has GPUs for.
    """
    facts = machine.facts
    nodes = _nodes_of(nodes_text) if nodes_text else ()
    sizes = {len(ranks) for ranks in nodes}
    fabrics = {(gpu["fabric"]["cluster"], gpu["fabric"]["clique"]) for gpu in facts["gpus"] if gpu["fabric"]}
    notes = [
        f"NVLink domain {cluster}, clique {clique}: where it spans several machines, they are one node"
        for cluster, clique in sorted(fabrics)
    ]
    if len(sizes) <= 1:
        rails, told = machine.rails(*sizes)
    else:
        rails, told = [], ["nodes of unequal size have no rails: every collective takes the exact path"]
    return Overview(facts, rails, nodes, tuple(dict.fromkeys((*facts["notes"], *notes, *told))))


def _nodes_of(text: str) -> tuple[tuple[int, ...], ...]:
    from isthmus import native

    grid = re.fullmatch(r"(\d{1,7})x(\d{1,7})", text)
    num_ranks = int(grid[1]) * int(grid[2]) if grid else len(re.findall(r"\d+", text))
    if num_ranks > _MOST_RANKS:
        raise ValueError(f"--nodes={text[:40]!r}: {num_ranks} ranks are more than the {_MOST_RANKS} that can be shown")
    try:
        node_of_rank = native.load().parse_nodes(text, max(num_ranks, 1))
    except ValueError as error:
        raise ValueError(f"--nodes: {error}") from None
    return tuple(tuple(ranks) for _, ranks in sorted(ranks_by_value(range(num_ranks), node_of_rank).items()))


def print_overview(view: Overview, console: Console) -> None:
    """Print everything. Lines of the matrix run on beyond the console's width rather than break."""
    for part in _parts(view):
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(view: Overview) -> Iterator[Text | Tree | Table]:
    machine, blank = view.machine, Text()
    yield Text.assemble((machine["name"], "bold"), f"  (from {machine['source']})")
    yield from (Text(f"  {sentence}") for sentence in _summary(machine))
    yield from (blank, _tree(machine))
    if len(_labels(machine)) > 1:
        yield from (blank, *_matrix(machine), Text(_LEGEND, "dim"))
    if view.rails:
        speed = slowest(rail["speed_gbit_s"] for rail in view.rails)
        told = "speed unknown" if speed is None else f"{_gbit_s(speed)}, the slowest rail's"
        yield from (blank, _rails_table(machine, view.rails), Text(f"A rank's way out of its node: {told}"))
    if view.nodes:
        yield from (blank, *_node_lines(view))
    if view.notes:
        yield from (blank, Text("Notes", "bold"), *(Text(f"- {note}") for note in view.notes))


def _gbit_s(speed: float | None) -> str:
    """Return "252 Gbit/s"; empty where it is unknown."""
    return "" if speed is None else f"{speed:.4g} Gbit/s"


def _line(*parts: str | None) -> str:
    return "  ".join(part for part in parts if part)


def _labels(machine: Facts) -> dict[str, str]:
    """Return a line for each device, by its id."""
    found = {}
    for gpu in machine["gpus"]:
        fabric = gpu["fabric"] and f"NVLink domain {gpu['fabric']['cluster']}, clique {gpu['fabric']['clique']}"
        name = f"GPU{gpu['index']}"
        found[name] = _line(name, gpu["model"], gpu["bus_id"], fabric)
    for nic in machine["nics"]:
        speed = _gbit_s(nic["speed_gbit_s"]) or "speed unknown"
        name = f"NIC{nic['index']}"
        found[name] = _line(name, nic["name"], _KINDS.get(nic["kind"]), speed, nic["bus_id"])
    return found


def _summary(machine: Facts) -> Iterator[str]:
    """Yield what the machine has: processors, NUMA nodes, GPUs, NICs, NVLinks."""
    yield count(socket["model"] or "unknown model" for socket in machine["sockets"]) or "processors unknown"
    numa = len(machine["numa_nodes"])
    if numa:
        yield f"{numa} NUMA node{'s' if numa > 1 else ''}"
    yield count(gpu["model"] or "GPU" for gpu in machine["gpus"]) or "no GPU"
    nics = (f"{_KINDS.get(nic['kind'], '')} {_gbit_s(nic['speed_gbit_s'])}".strip() or "NIC" for nic in machine["nics"])
    yield count(nics) or "no NIC"
    if nvlinks := nvlinks_in_words(machine):
        yield nvlinks


def _tree(machine: Facts) -> Tree:
    """Return host bridges and the devices that are in none, by NUMA node; what is in no known node comes last."""
    tree = Tree("PCIe" if machine["pcie"] else "devices", guide_style="dim")
    labels = _labels(machine)
    in_tree = {device for place in machine["pcie"] for device in _devices(place)}
    numa_of = dict(zip(labels, (one["numa_node"] for one in machine["gpus"] + machine["nics"]), strict=True))
    loose = [device for device in labels if device not in in_tree]
    numa_nodes = {place["numa_node"] for place in machine["pcie"]} | {numa_of[device] for device in loose}
    for numa_node in sorted(numa_nodes, key=lambda index: (index is None, index or 0)):
        where = _numa_name(machine, numa_node)
        for place in machine["pcie"]:
            if place["numa_node"] == numa_node:
                _add_place(tree, place, labels, where)
        here = [device for device in loose if numa_of[device] == numa_node]
        if here:
            branch = tree.add(Text(where or "place unknown"))
            for device in here:
                branch.add(Text(labels[device]))
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


def _add_place(tree: Tree, place: Facts, labels: dict[str, str], where: str) -> None:
    speed = _gbit_s(place["link_speed_gbit_s"])
    if place["devices"]:
        for device in place["devices"]:
            label = Text(labels[device], "green" if place["kind"] == "gpu" else "cyan")
            tree.add(label.append(f"  PCIe {speed}" if speed else "", "dim"))
    else:
        tree = tree.add(Text(_line(place["kind"], place["bus_id"], where, speed)))
    for child in place["children"]:
        _add_place(tree, child, labels, "")


def _matrix(machine: Facts) -> Iterator[Text]:
    """Return lines as `nvidia-smi topo -m` has them, and NUMA nodes at their ends."""
    ids = list(_labels(machine))
    kinds = {
        pair: link["kind"] for link in machine["links"] for pair in combinations((link["a"], link["b"], link["a"]), 2)
    }
    width = max(map(len, ids)) + 2
    yield Text(" " * width + "".join(one.ljust(width) for one in ids) + "NUMA", "bold")
    for device, facts in zip(ids, machine["gpus"] + machine["nics"], strict=True):
        line = Text(device.ljust(width), "bold")
        for column in ids:
            kind = "X" if column == device else kinds[device, column]
            line.append(kind.ljust(width), _STYLES.get(kind, "bold green"))
        yield line.append("" if facts["numa_node"] is None else str(facts["numa_node"]))


def _rails_table(machine: Facts, rails: list[Facts]) -> Table:
    table = Table(title="Rails: the way out of the node for each local index", title_justify="left", box=None)
    for heading in ("local index", "GPU", "NIC", "distance", "ranks sharing it", "Gbit/s"):
        table.add_column(heading, justify="right" if heading in ("ranks sharing it", "Gbit/s") else "left")
    names = {f"NIC{nic['index']}": nic["name"] for nic in machine["nics"]}
    for rail in rails:
        table.add_row(
            str(rail["local_index"]),
            rail["gpu"] or "-",
            Text(" ".join(part for part in (rail["nic"], names[rail["nic"]]) if part)),
            Text(rail["distance"] or "-", _STYLES.get(rail["distance"] or "", "")),
            str(rail["num_sharing"]),
            "unknown" if rail["speed_gbit_s"] is None else f"{rail['speed_gbit_s']:.4g}",
        )
    return table


def _node_lines(view: Overview) -> Iterator[Text]:
    sizes = {len(ranks) for ranks in view.nodes}
    each = f"{sizes.pop()} ranks each" if len(sizes) == 1 else "nodes of unequal size"
    yield Text.assemble((f"{len(view.nodes)} node{'s' if len(view.nodes) != 1 else ''}", "bold"), f", {each}")
    for node, ranks in enumerate(view.nodes[:_MOST_NAMED]):
        named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if len(ranks) > _MOST_NAMED else "")
        yield Text(f"  node {node}: ranks {named}")
    if len(view.nodes) > _MOST_NAMED:
        yield Text(f"  and {len(view.nodes) - _MOST_NAMED} more")
