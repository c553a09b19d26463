"""The groups that rows run on: each shape once on Isthmus and once, with the same members, on Gloo."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import isthmus

WORLD_SIZE = 4
NODES = "2x2"
MIN_ELEMENTS = 1024
EVERYONE = [[0, 1, 2, 3]]
WITHIN = [[0, 1], [2, 3]]
ACROSS = [[0, 2], [1, 3]]
MEMBERS: dict[str, Sequence[Sequence[int]]] = {
    "world": EVERYONE,
    "interleaved nodes": EVERYONE,
    "inside a node": WITHIN,
    "one rank a node": ACROSS,
    "uneven nodes": [[0, 1, 2]],
    "one rank": [[0], [1], [2], [3]],
    "mesh across nodes": ACROSS,
    "mesh within nodes": WITHIN,
    "split": ACROSS,
}
# Nodes and ranks a node, where a group has two tiers.
TIERS = {
    "world": (2, 2),
    "interleaved nodes": (2, 2),
    "one rank a node": (2, 1),
    "mesh across nodes": (2, 1),
    "split": (2, 1),
}
# torch.distributed.split_group asks for a bound device before 2.15, which a CPU cannot be.
CAN_SPLIT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


class OneThreadGloo(dist.ProcessGroupGloo):
    """Gloo as the reference: with its usual two threads the process dies now and then (docs/compatibility.md)."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, **_of_later_torches: Any) -> None:
        options = self._Options()
        options._devices = [self.create_default_device()]
        options._threads = 1
        options._timeout = timeout
        super().__init__(store, rank, size, options)


# What torch makes groups of when it is asked for "gloo". Isthmus has imported the usual one.
c10d.ProcessGroupGloo = OneThreadGloo


class Groups:
    """Makes each group when it is first asked for; all ranks must ask in one order."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], dist.ProcessGroup | None] = {}

    def gloo(self, shape: str) -> dist.ProcessGroup | None:
        return self._cached(shape, "gloo", lambda: self._enumerated(MEMBERS[shape], backend="gloo"))

    def isthmus(self, shape: str, codec: str, min_elements: int = MIN_ELEMENTS) -> dist.ProcessGroup | None:
        kind = f"{codec} from {min_elements} elements"
        return self._cached(shape, kind, lambda: self._isthmus(shape, codec, min_elements))

    def _cached(self, shape: str, kind: str, make: Any) -> dist.ProcessGroup | None:
        if (shape, kind) not in self._made:
            self._made[shape, kind] = make()
        return self._made[shape, kind]

    def _isthmus(self, shape: str, codec: str, min_elements: int) -> dist.ProcessGroup | None:
        nodes = "0,2|1,3" if shape == "interleaved nodes" else NODES
        options = isthmus.Options(codec=codec, nodes=nodes, min_elements=min_elements)
        if shape.startswith("mesh"):
            override: Any = {name: ("isthmus", options) for name in ("across", "within")}
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"), backend_override=override)
            return mesh.get_group(shape.split()[1])
        if shape == "split":
            return dist.split_group(split_ranks=[list(ranks) for ranks in MEMBERS[shape]], pg_options=options)
        return self._enumerated(MEMBERS[shape], backend="isthmus", pg_options=options)

    def _enumerated(self, members: Sequence[Sequence[int]], **settings: Any) -> dist.ProcessGroup | None:
        own = None
        for ranks in members:
            group = dist.new_group(list(ranks), **settings)
            own = group if dist.get_rank() in ranks else own
        return own

    def two_tier_calls(self) -> dict[str, int]:
        """Return how many collectives took two tiers on this rank, by kind, and how many were compressed."""
        calls: dict[str, int] = {}
        for (_, kind), group in self._made.items():
            if group is not None and kind != "gloo":
                stats = isthmus.stats(group)
                numbers = {name: entry["calls"] for name, entry in stats["collectives"].items()}
                for name, number in (numbers | {"compressed": stats["compressed_calls"]}).items():
                    calls[name] = calls.get(name, 0) + number
        return calls
