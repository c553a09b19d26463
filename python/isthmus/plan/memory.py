"""Memory of one rank: placed tensors, and what Isthmus adds. Activations are not included."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from isthmus.plan.assumptions import INPUT_BUFFERS
from isthmus.plan.packets import WireOptions, flat_bytes, packet_bytes, piece_bytes
from isthmus.plan.placement import (
    Cluster,
    ElementBytes,
    Placement,
    Placements,
    Scope,
    operations_of,
)
from isthmus.plan.units import Unit
from isthmus.plan.volumes import Collective, Formula, IsthmusFormula, Kind

_FLOAT_BYTES = 4
#: FSDP2 holds the weights of the unit that computes and of the one that is gathered beside it. Forward passes of a
#: prepared model on GPUs hold one more for a moment, but no gradients yet.
_GATHERED_AT_ONCE = 2
#: FSDP2 holds whole gradients of the units in its input buffers and of the one that computes.
_UNREDUCED_AT_ONCE = INPUT_BUFFERS + 1
#: Adam: two moments in float32.
_OPTIMIZER_BYTES = 8


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    parameters, gradients, optimizer: as placed. gathered: whole parameters while they are needed, unreduced: whole
    gradients until they are reduced. deferred: gradients that wait for the last micro-batch. residuals, replicas (of
    weights that cross as differences), scratch: of Isthmus.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    unreduced: int
    deferred: int
    residuals: int
    replicas: int
    scratch: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(asdict(self).values())


def memory_of(
    placed_units: Sequence[tuple[Unit, Placements]],
    formula: Formula,
    cluster: Cluster,
    element_bytes: ElementBytes,
    defers: bool = False,
) -> Memory:
    """Memory of a rank, for units in the order of their gathers with the placements of each.

    What is frozen is stored as it is gathered. defers: whether gradients are reduced in the last of several
    micro-batches: FSDP2 then keeps whole gradients until then, or with HSDP a sum that is reduced within the node.
    """
    trained = sum(_trained_elements(unit, p.parameters, cluster) for unit, p in placed_units)
    whole = sum(_part_elements(unit, p.parameters, cluster) for unit, p in placed_units)
    deferred = sum(_deferred_elements(unit, p.parameters, cluster) for unit, p in placed_units) if defers else 0
    operations = [op for unit, p in placed_units for op in operations_of(unit, p, cluster, element_bytes)]
    residuals, replicas, scratch = 0, 0, 0
    if isinstance(formula, IsthmusFormula):
        calls = [op.on(0, cluster) for op in operations]
        residuals = sum(residual_bytes(formula, call) for call in calls)
        replicas = sum(_replica_bytes(formula, call) for call in calls)
        scratch = max((scratch_bytes(formula, call) for call in calls), default=0)
    return Memory(
        parameters=trained * element_bytes.stored + (whole - trained) * element_bytes.gathered,
        gradients=trained * element_bytes.stored,
        optimizer=trained * _OPTIMIZER_BYTES,
        gathered=_gathered(placed_units, cluster, element_bytes),
        unreduced=_unreduced(placed_units, element_bytes),
        deferred=deferred * element_bytes.reduced,
        residuals=residuals,
        replicas=replicas,
        scratch=scratch,
    )


def residual_bytes(formula: IsthmusFormula, call: Collective) -> int:
    """What a reduction keeps for the next steps: of all that it encodes (docs/checkpoints.md, "Memory")."""
    wire = formula.options
    coded = [hop.encoded_elements for hop in formula(call, call.ranks[0]) if hop.codec == wire.codec]
    return sum(coded) * _FLOAT_BYTES if wire.keeps_residual else 0


def _replica_bytes(formula: IsthmusFormula, call: Collective) -> int:
    """The shards of the rail of a unit that is gathered over nodes, once, however often it is."""
    rail_bytes = formula.num_nodes(call) * call.chunk_elements * call.element_bytes
    return rail_bytes if formula.sends_differences(call) and not call.is_repeated else 0


def _part_elements(unit: Unit, placement: Placement, cluster: Cluster) -> int:
    if placement is Placement.REPLICATED:
        return unit.num_parameters
    num_shards = cluster.size(Scope.NODE if placement is Placement.NODE_SHARDED else Scope.WORLD)
    return unit.padded_elements(num_shards) // num_shards


def _trained_elements(unit: Unit, placement: Placement, cluster: Cluster) -> int:
    if placement is Placement.REPLICATED:
        return unit.num_trained
    num_shards = cluster.size(Scope.NODE if placement is Placement.NODE_SHARDED else Scope.WORLD)
    return unit.padded_trained(num_shards) // num_shards


def _deferred_elements(unit: Unit, placement: Placement, cluster: Cluster) -> int:
    """Gradients beside those at rest, which DDP's are added to."""
    if placement is Placement.REPLICATED:
        return 0
    return unit.num_trained if placement is Placement.SHARDED else _trained_elements(unit, placement, cluster)


def _gathered(placed_units: Sequence[tuple[Unit, Placements]], cluster: Cluster, element_bytes: ElementBytes) -> int:
    """Units that stay gathered, what is kept in the node of the others, and the largest of these while they compute."""
    kept = 0
    passing = []
    for unit, placements in placed_units:
        if placements.parameters is Placement.REPLICATED:
            kept += unit.num_trained if element_bytes.gathered != element_bytes.stored else 0  # a cast copy
        elif placements.kept is Placement.REPLICATED:
            kept += unit.num_parameters
        else:
            passing.append(unit.num_parameters)
            if placements.kept is not placements.parameters:
                kept += _part_elements(unit, placements.kept, cluster)
    return (kept + sum(sorted(passing)[-_GATHERED_AT_ONCE:])) * element_bytes.gathered


def _unreduced(placed_units: Sequence[tuple[Unit, Placements]], element_bytes: ElementBytes) -> int:
    sizes = sorted(unit.num_trained for unit, p in placed_units if p.parameters is not Placement.REPLICATED)
    return sum(sizes[-_UNREDUCED_AT_ONCE:]) * element_bytes.reduced


def scratch_bytes(formula: IsthmusFormula, call: Collective) -> int:
    """Return the scratch bytes of a collective on Isthmus, ranks placed in blocks (docs/algorithms.md, "Memory").

    All collectives share a slab, which grows by pieces and so may exceed the largest need.
    """
    wire, num_nodes = formula.options, formula.num_nodes(call)
    num_ranks, chunk, wide = len(call.ranks), call.chunk_elements, max(call.element_bytes, _FLOAT_BYTES)
    if num_nodes == 1:
        return 0
    if formula.sends_differences(call):
        return chunk * call.element_bytes + (num_nodes - 1) * formula.changed_bytes(call)
    if call.kind is Kind.ALL_GATHER:
        return num_nodes * chunk * call.element_bytes if num_ranks > num_nodes else 0
    codec = formula.codec_of(call)
    lossy = codec != "none"
    packet = packet_bytes(chunk, call.element_bytes, codec, wire)
    narrow = call.element_bytes < wide
    if wire.is_flat:
        reduction = _flat_bytes(wire, call, lossy)
    else:
        pieces = num_nodes * chunk * wide if num_ranks > num_nodes or narrow else 0  # else the gradient itself
        reduction = pieces + 2 * num_nodes * piece_bytes(chunk, call.element_bytes, codec, wire)
    if call.kind is Kind.REDUCE_SCATTER:
        return reduction + (chunk * wide if narrow and (lossy or not wire.is_flat) else 0)
    filled_up = call.num_elements != chunk * num_ranks
    packets = 1 + num_ranks + (num_nodes if num_ranks > num_nodes else 0)
    filled = num_ranks * chunk * call.element_bytes if filled_up else 0
    stand_in = chunk * wide if filled_up or narrow else 0
    return reduction + chunk * wide + packets * packet + filled + stand_in


def _flat_bytes(wire: WireOptions, call: Collective, lossy: bool) -> int:
    """A single tier: the sum, or all owners' indexes and sketches, one more index that arrives, and a summed sketch."""
    num_ranks, chunk = len(call.ranks), call.chunk_elements
    if not lossy:
        return chunk * max(call.element_bytes, _FLOAT_BYTES)
    return (num_ranks + 1) * sum(flat_bytes(chunk, wire))
