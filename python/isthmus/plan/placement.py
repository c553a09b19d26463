"""The collectives of a step, from the placement of its tensors.

A rank computes with whole parameters, and its own gradient is one term of a sum. So each unit must be *gathered* where
its parameters are sharded, and its gradients *reduced* to where they are placed, which is where the parameters are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from isthmus.plan.ranges import check_choice, check_range
from isthmus.plan.volumes import Collective, Kind

if TYPE_CHECKING:
    from isthmus.plan.units import Unit  # which needs torch

MOST_NODES = 4096
MOST_RANKS_PER_NODE = 128


class Scope(StrEnum):
    """Which ranks form a group: all; those of one node, on every node at once; those of one rail; each by itself."""

    WORLD = "world"
    NODE = "node"
    RAIL = "rail"
    RANK = "rank"


class Phase(StrEnum):
    """The part of a step in which a collective is made."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCTION = "reduction"


@dataclass(frozen=True)
class Cluster:
    """Nodes with equally many ranks, placed in blocks: rank = node x ranks_per_node + local index."""

    nodes: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        check_range("nodes", self.nodes, 1, MOST_NODES)
        check_range("ranks_per_node", self.ranks_per_node, 1, MOST_RANKS_PER_NODE)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    def size(self, scope: Scope) -> int:
        """Ranks of one group of that scope."""
        return len(self.ranks(scope, 0))

    def ranks(self, scope: Scope, rank: int) -> range:
        """The ranks of the group of that scope that `rank` is in."""
        node, local_index = divmod(rank, self.ranks_per_node)
        return {
            Scope.WORLD: range(self.world_size),
            Scope.NODE: range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node),
            Scope.RAIL: range(local_index, self.world_size, self.ranks_per_node),
            Scope.RANK: range(rank, rank + 1),
        }[scope]


@dataclass(frozen=True)
class Operation:
    """A collective of a unit, made by every rank in its group of that scope. call: that of rank 0."""

    phase: Phase
    scope: Scope
    call: Collective

    def on(self, rank: int, cluster: Cluster) -> Collective:
        """The call of one rank."""
        return replace(self.call, ranks=cluster.ranks(self.scope, rank))


@dataclass(frozen=True)
class Placements:
    """The groups over which a step's tensors are sharded. `Scope.RANK`: they are whole on every rank.

    parameters: between steps, and with them their gradients and the optimizer's states. kept: the parameters between
    the forward and the backward pass, possibly over fewer ranks.
    """

    parameters: Scope
    kept: Scope


FSDP = Placements(Scope.WORLD, Scope.WORLD)
#: FSDP2's reshard_after_forward=L.
FSDP_NODE = Placements(Scope.WORLD, Scope.NODE)
HSDP = Placements(Scope.NODE, Scope.NODE)
DDP = Placements(Scope.RANK, Scope.RANK)
#: The group of the ranks that hold the same shard, by the group over which a tensor is sharded.
_COPIES = {Scope.WORLD: Scope.RANK, Scope.NODE: Scope.RAIL, Scope.RANK: Scope.WORLD}

#: The bytes of an element, by the names that `isthmus plan` takes.
BYTES_OF = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class ElementBytes:
    """Bytes of an element as it is gathered, as it is reduced, and of a parameter and its gradient at rest."""

    gathered: int = 2
    reduced: int = 2
    stored: int = 4

    @classmethod
    def of(cls, gathered: str, reduced: str) -> ElementBytes:
        """By names of types; parameters are stored in float32. ValueError names those that are known."""
        for dtype in (gathered, reduced):
            check_choice("dtype", dtype, BYTES_OF)
        return cls(BYTES_OF[gathered], BYTES_OF[reduced])


def operations_of(
    unit: Unit, placements: Placements, cluster: Cluster, element_bytes: ElementBytes
) -> tuple[Operation, ...]:
    """The collectives of one unit in a step of one forward and one backward pass.

    Those of one rank are left out, and so are reductions of units that are not trained.
    """
    scope, copies = placements.parameters, _COPIES[placements.parameters]
    ranks = cluster.ranks(scope, 0)
    num_trained, trained_share = unit.padded_trained(len(ranks)), unit.num_trained / unit.num_parameters
    num_elements = unit.padded_elements(len(ranks))
    gather = Collective(Kind.ALL_GATHER, ranks, num_elements, element_bytes.gathered, trained_share=trained_share)
    # What is kept in the node is a part of the whole, padding included.
    gather_again = replace(gather, ranks=cluster.ranks(placements.kept, 0), is_repeated=True)
    scatter = Collective(Kind.REDUCE_SCATTER, ranks, num_trained, element_bytes.reduced)
    add = Collective(Kind.ALL_REDUCE, cluster.ranks(copies, 0), num_trained // len(ranks), element_bytes.reduced)
    every = (
        Operation(Phase.FORWARD, scope, gather),
        Operation(Phase.BACKWARD, placements.kept, gather_again),
        Operation(Phase.REDUCTION, scope, scatter),
        Operation(Phase.REDUCTION, copies, add),
    )
    return tuple(each for each in every if len(each.call.ranks) > 1 and each.call.num_elements)
