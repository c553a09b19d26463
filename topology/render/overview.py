"""The contents of `isthmus topo`: a machine, its rails, and the nodes made of such machines where they are given."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from isthmus.topology.machine import Machine
from isthmus.topology.node_map import ranks_by_value
from isthmus.topology.rails import Rails, find_rails

#: The version of the JSON.
SCHEMA = 2
#: Ranks that a node map may have here.
_MOST_RANKS = 1 << 20

Nodes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Overview:
    """A machine with what follows from it. nodes: the ranks of each; none where they were not given.

    notes: the machine's own, then those on rails and nodes.
    """

    machine: Machine
    rails: Rails
    nodes: Nodes
    notes: tuple[str, ...]

    @property
    def ranks_per_node(self) -> int | None:
        """None where nodes differ, or there are none."""
        return len(self.nodes[0]) if len({len(ranks) for ranks in self.nodes}) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """The machine's own JSON, with `schema`, `rails`, `nodes` and all notes."""
        more = {"rails": [asdict(rail) for rail in self.rails.rails], "nodes": self.nodes, "notes": self.notes}
        return {"schema": SCHEMA, **self.machine.to_json(), **more}


def overview(machine: Machine, nodes_text: str | None) -> Overview:
    """Put everything together. nodes_text: an option's value, as ISTHMUS_NODES takes it.

    Raises ValueError where it is no node map, or has other ranks on a node than the machine has GPUs for.
    """
    nodes = _nodes_of(nodes_text) if nodes_text else ()
    sizes = {len(ranks) for ranks in nodes}
    notes = [
        f"NVLink domain {cluster}, clique {clique}: where it spans several machines, they are one node"
        for cluster, clique in sorted({(gpu.fabric.cluster, gpu.fabric.clique) for gpu in machine.gpus if gpu.fabric})
    ]
    if len(sizes) > 1:
        rails = Rails((), ("nodes of unequal size have no rails: every collective takes the exact path",))
    else:
        rails = find_rails(machine, *sizes)
    return Overview(machine, rails, nodes, tuple(dict.fromkeys((*machine.notes, *notes, *rails.notes))))


def _nodes_of(text: str) -> Nodes:
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


def count_models(models: tuple[str | None, ...]) -> str:
    """Return "8 x NVIDIA H100" for eight of a kind; what has no model counts as unknown."""
    return ", ".join(f"{count} x {model or 'unknown model'}" for model, count in Counter(models).items())
