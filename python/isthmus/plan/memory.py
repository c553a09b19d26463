"""Memory of one rank: placed tensors, and what Isthmus adds. Activations are not included."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from isthmus.plan.assumptions import INPUT_BUFFERS
from isthmus.plan.packets import flat_bytes, packet_bytes, piece_bytes
from isthmus.plan.placement import Cluster, ElementBytes, Operation, Placements, Scope
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
    operations: Sequence[Operation],
    formula: Formula,
    cluster: Cluster,
    element_bytes: ElementBytes,
    defers: bool,
) -> Memory:
    """Memory of a rank, for units in the order of their gathers with the placements of each.

    What is frozen is stored as it is gathered. operations: of a step with one micro-batch. defers: whether gradients
    are reduced in the last of several micro-batches: FSDP2 then keeps whole gradients until then, or with HSDP a sum
    that is reduced within the node. DDP's are added to those at rest.
    """
    whole = trained = deferred = kept = 0
    passing, unreduced = [], []
    for unit, placements in placed_units:
        num_shards = cluster.size(placements.parameters)
        trained_shard = unit.padded_trained(num_shards) // num_shards
        whole += unit.padded_elements(num_shards) // num_shards
        trained += trained_shard
        if placements.parameters is Scope.RANK:
            kept += unit.num_trained if element_bytes.gathered != element_bytes.stored else 0  # a cast copy
            continue
        unreduced.append(unit.num_trained)
        deferred += unit.num_trained if placements.parameters is Scope.WORLD else trained_shard
        if placements.kept is Scope.RANK:
            kept += unit.num_parameters
            continue
        passing.append(unit.num_parameters)
        if placements.kept is not placements.parameters:
            num_holders = cluster.size(placements.kept)
            kept += unit.padded_elements(num_holders) // num_holders
    residuals = replicas = scratch = 0
    if isinstance(formula, IsthmusFormula):
        calls = [operation.call for operation in operations]
        if formula.options.keeps_residual:  # of all that a reduction encodes (docs/checkpoints.md, "Memory")
            hops = [hop for call in calls for hop in formula(call, 0) if hop.codec == formula.options.codec]
            residuals = sum(hop.encoded_elements for hop in hops) * _FLOAT_BYTES
        # The shards of the rail of a unit that is gathered over nodes, once, however often it is.
        of_weights = [call for call in calls if formula.sends_differences(call) and not call.is_repeated]
        replicas = sum(formula.num_nodes(call) * call.chunk_elements * call.element_bytes for call in of_weights)
        scratch = max((scratch_bytes(formula, call) for call in calls), default=0)
    return Memory(
        parameters=trained * element_bytes.stored + (whole - trained) * element_bytes.gathered,
        gradients=trained * element_bytes.stored,
        optimizer=trained * _OPTIMIZER_BYTES,
        gathered=(kept + sum(sorted(passing)[-_GATHERED_AT_ONCE:])) * element_bytes.gathered,
        unreduced=sum(sorted(unreduced)[-_UNREDUCED_AT_ONCE:]) * element_bytes.reduced,
        deferred=deferred * element_bytes.reduced if defers else 0,
        residuals=residuals,
        replicas=replicas,
        scratch=scratch,
    )


def scratch_bytes(formula: IsthmusFormula, call: Collective) -> int:
    """Return the scratch bytes of a collective on Isthmus, ranks placed in blocks.

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
    if wire.is_flat and lossy:  # all owners' indexes and sketches, one more index that arrives, and a summed sketch
        reduction = (num_ranks + 1) * sum(flat_bytes(chunk, wire))
    elif wire.is_flat:
        reduction = chunk * wide
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
