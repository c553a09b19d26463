"""The contents of `isthmus topo`: a machine, its rails, and the nodes made of such machines where they are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isthmus.topology.launchers import launched_as
from isthmus.topology.machine import Machine
from isthmus.topology.node_map import ranks_by_value
from isthmus.topology.rails import Rails, find_rails

#: The version of the JSON.
SCHEMA = 1
#: Ranks that a node map may have here.
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class NodeShape:
    """How many nodes there are, and how many ranks on each; ranks_per_node is None where nodes differ.

    nodes: each node's ranks, where it is known which; None: only their number is. source: who says so.
    """

    num_nodes: int
    ranks_per_node: int | None
    nodes: tuple[tuple[int, ...], ...] | None
    source: str


@dataclass(frozen=True)
class Overview:
    """A machine with what follows from it. notes: the machine's own, then those on rails and nodes."""

    machine: Machine
    rails: Rails
    shape: NodeShape | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The machine's own JSON, with `schema`, `rails`, `node_map` (None: unknown) and all notes."""
        more = {"rails": self.rails.to_json(), "node_map": self.shape and asdict(self.shape), "notes": self.notes}
        return {"schema": SCHEMA, **self.machine.to_json(), **more}


def overview(machine: Machine, nodes: str | None, environment: Mapping[str, str]) -> Overview:
    """Put everything together. nodes: an option's value, as ISTHMUS_NODES takes it.

    Raises ValueError where `nodes`, or ISTHMUS_NODES in the environment, is no node map.
    """
    shape = node_shape(nodes, environment)
    rails, notes = _rails(machine, shape, is_asked_for=nodes is not None)
    notes += [
        f"NVLink domain {cluster}, clique {clique}: where it spans several machines, they are one node"
        for cluster, clique in sorted({(gpu.fabric.cluster, gpu.fabric.clique) for gpu in machine.gpus if gpu.fabric})
    ]
    if machine.source == "discovery" and machine.gpus and environment.get("CUDA_VISIBLE_DEVICES"):
        notes.append("CUDA_VISIBLE_DEVICES is set: a local rank's GPU may be another than the one of its number here")
    return Overview(machine, rails, shape, tuple(dict.fromkeys((*machine.notes, *notes, *rails.notes))))


def node_shape(nodes: str | None, environment: Mapping[str, str]) -> NodeShape | None:
    """Return the shape of the cluster by the option, ISTHMUS_NODES or a launcher, in this order; None: unknown."""
    for text, source in ((nodes, "--nodes"), (environment.get("ISTHMUS_NODES"), "ISTHMUS_NODES")):
        if text:
            return _shape_of(text, source)
    claim = launched_as(environment)
    if claim is None:
        return None
    is_even = claim.size % claim.node_size == 0
    num_nodes = -(-claim.size // claim.node_size)
    return NodeShape(num_nodes, claim.node_size if is_even else None, None, claim.launcher)


def _shape_of(text: str, source: str) -> NodeShape:
    from isthmus import native

    grid = re.fullmatch(r"(\d{1,7})x(\d{1,7})", text)
    num_ranks = int(grid[1]) * int(grid[2]) if grid else len(re.findall(r"\d+", text))
    if num_ranks > _MOST_RANKS:
        raise ValueError(f"{source}={text[:40]!r}: {num_ranks} ranks are more than the {_MOST_RANKS} that can be shown")
    try:
        node_of_rank = native.load().parse_nodes(text, max(num_ranks, 1))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    nodes = tuple(tuple(ranks) for _, ranks in sorted(ranks_by_value(range(num_ranks), node_of_rank).items()))
    sizes = {len(ranks) for ranks in nodes}
    return NodeShape(len(nodes), sizes.pop() if len(sizes) == 1 else None, nodes, source)


def _rails(machine: Machine, shape: NodeShape | None, is_asked_for: bool) -> tuple[Rails, list[str]]:
    """Return the rails of as many ranks as a node has, and what keeps them from being those."""
    if shape is None:
        return find_rails(machine), []
    if shape.ranks_per_node is None:
        return Rails(()), ["nodes of unequal size have no rails: every collective takes the exact path"]
    try:
        return find_rails(machine, shape.ranks_per_node), []
    except ValueError as error:
        if is_asked_for:
            raise
        return find_rails(machine), [f"by {shape.source}: {error}"]


def count_models(models: tuple[str | None, ...]) -> str:
    """Return "8 x NVIDIA H100" for eight of a kind; what has no model counts as unknown."""
    return ", ".join(f"{count} x {model or 'unknown model'}" for model, count in Counter(models).items())
