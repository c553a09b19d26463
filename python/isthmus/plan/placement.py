"""The collectives of a step, from the placement of its tensors.

A rank computes with whole parameters, and its own gradient is one term of a sum. So each unit must be *gathered* where
its parameters are sharded, and its gradients *reduced* to where they are placed, which is where the parameters are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from isthmus.plan.ranges import check_choice, check_range
from isthmus.plan.volumes import Collective, Kind

if TYPE_CHECKING:
    from isthmus.plan.units import Unit  # which needs torch

MOST_NODES = 4096
MOST_RANKS_PER_NODE = 128


class Placement(StrEnum):
    """Where a tensor is: whole on every rank; sharded over the ranks of each node; sharded over all ranks."""

    REPLICATED = "replicated"
    NODE_SHARDED = "sharded in the node"
    SHARDED = "sharded"


class Scope(StrEnum):
    """Which ranks take part: all; those of one node, on every node at once; those of one rail, on every rail."""

    WORLD = "world"
    NODE = "node"
    RAIL = "rail"


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
        return {Scope.WORLD: self.world_size, Scope.NODE: self.ranks_per_node, Scope.RAIL: self.nodes}[scope]

    def ranks(self, scope: Scope, rank: int) -> Sequence[int]:
        """The ranks of the group of that scope that `rank` is in."""
        node, local_index = divmod(rank, self.ranks_per_node)
        if scope is Scope.WORLD:
            return range(self.world_size)
        if scope is Scope.NODE:
            return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
        return range(local_index, self.world_size, self.ranks_per_node)


@dataclass(frozen=True)
class Operation:
    """A collective of a unit, made by every rank in its group of that scope."""

    phase: Phase
    kind: Kind
    scope: Scope
    num_elements: int
    element_bytes: int
    #: Whether a gather is known to bring what the one before it brought.
    is_repeated: bool = False
    #: The share of a gather's elements that are trained: others never change.
    trained_share: float = 1.0

    def on(self, rank: int, cluster: Cluster) -> Collective:
        """The call of one rank."""
        ranks = cluster.ranks(self.scope, rank)
        return Collective(self.kind, ranks, self.num_elements, self.element_bytes, self.is_repeated, self.trained_share)


@dataclass(frozen=True)
class Placements:
    """How a step's tensors are placed.

    parameters: between steps, and with them their gradients and the optimizer's states. kept: the parameters between
    the forward and the backward pass, possibly over fewer ranks.
    """

    parameters: Placement
    kept: Placement


FSDP = Placements(Placement.SHARDED, Placement.SHARDED)
#: FSDP2's reshard_after_forward=L.
FSDP_NODE = Placements(Placement.SHARDED, Placement.NODE_SHARDED)
HSDP = Placements(Placement.NODE_SHARDED, Placement.NODE_SHARDED)
DDP = Placements(Placement.REPLICATED, Placement.REPLICATED)


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


_SCOPE_OF = {Placement.NODE_SHARDED: Scope.NODE, Placement.SHARDED: Scope.WORLD}


def operations_of(
    unit: Unit, placements: Placements, cluster: Cluster, element_bytes: ElementBytes
) -> tuple[Operation, ...]:
    """The collectives of one unit in a step of one forward and one backward pass.

    Those of one rank are left out, and so are reductions of units that are not trained.
    """
    operations = _operations(unit, placements, cluster, element_bytes)
    return tuple(op for op in operations if cluster.size(op.scope) > 1 and op.num_elements)


def _operations(
    unit: Unit, placements: Placements, cluster: Cluster, element_bytes: ElementBytes
) -> Iterator[Operation]:
    gathered, reduced = element_bytes.gathered, element_bytes.reduced
    if placements.parameters is Placement.REPLICATED:
        yield Operation(Phase.REDUCTION, Kind.ALL_REDUCE, Scope.WORLD, unit.num_trained, reduced)
        return
    scope = _SCOPE_OF[placements.parameters]
    num_elements = unit.padded_elements(cluster.size(scope))
    trained_share = unit.num_trained / unit.num_parameters
    forward = Operation(Phase.FORWARD, Kind.ALL_GATHER, scope, num_elements, gathered, trained_share=trained_share)
    yield forward
    if placements.kept is not Placement.REPLICATED:  # what is kept in the node is a part of the whole, padding included
        yield replace(forward, phase=Phase.BACKWARD, scope=_SCOPE_OF[placements.kept], is_repeated=True)
    num_trained = unit.padded_trained(cluster.size(scope))
    yield Operation(Phase.REDUCTION, Kind.REDUCE_SCATTER, scope, num_trained, reduced)
    if scope is Scope.NODE:
        yield Operation(Phase.REDUCTION, Kind.ALL_REDUCE, Scope.RAIL, num_trained // cluster.ranks_per_node, reduced)


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of a step that make the same collectives, and how many they are."""

    count: int
    is_first: bool
    is_last: bool

    def operations(self, operations: Sequence[Operation], deferred: Kind | None) -> tuple[Operation, ...]:
        """Those of a step with one micro-batch, as they are in one of these. deferred: what only the last one makes.

        Weights do not change within a step, so gathers repeat the first micro-batch's.
        """
        return tuple(
            operation
            if self.is_first or operation.kind is not Kind.ALL_GATHER
            else replace(operation, is_repeated=True)
            for operation in operations
            if self.is_last or operation.kind is not deferred
        )


def micro_batches_of(count: int) -> tuple[MicroBatches, ...]:
    """The micro-batches of a step, in order."""
    if count == 1:
        return (MicroBatches(1, is_first=True, is_last=True),)
    between = (MicroBatches(count - 2, is_first=False, is_last=False),) if count > 2 else ()
    return (MicroBatches(1, is_first=True, is_last=False), *between, MicroBatches(1, is_first=False, is_last=True))
