"""Makes the call that a row describes, on whichever group it is given, and returns every tensor that it wrote."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from case import Case, flattened


def all_reduce(case: Case) -> Any:
    if case.mode == "functional":
        return funcol.wait_tensor(funcol.all_reduce(case.chunk(), case.row.op, case.group))
    if case.mode == "coalesced":
        tensors = [case.chunk(salt) for salt in range(3)]
        case.coalesced(lambda t=t: dist.all_reduce(t, case.op, case.group) for t in tensors)
        return tensors
    tensor = case.chunk()
    case.issue(lambda async_op: dist.all_reduce(tensor, case.op, case.group, async_op))
    return tensor


def reduce_scatter_tensor(case: Case) -> Any:
    shape = case.whole_shape(case.part)
    if case.mode == "functional":
        return funcol.wait_tensor(funcol.reduce_scatter_tensor(case.source(shape), case.row.op, 0, case.group))
    if case.mode == "coalesced":
        sources = [case.source(shape, salt) for salt in range(3)]
        outputs = [case.blank(case.part) for _ in sources]
        pairs = zip(outputs, sources, strict=True)
        case.coalesced(lambda o=o, i=i: dist.reduce_scatter_tensor(o, i, case.op, case.group) for o, i in pairs)
        return outputs
    if case.row.layout == "aliased":
        source = case.own(shape)
        output = source.chunk(case.size)[case.rank]
    else:
        source = case.source(shape)
        output = case.blank(case.part)
    case.issue(lambda async_op: dist.reduce_scatter_tensor(output, source, case.op, case.group, async_op))
    return output


def reduce_scatter(case: Case) -> Any:
    shapes = [case.shape(0, peer) for peer in range(case.size)]
    inputs = [case.source(shape, peer) for peer, shape in enumerate(shapes)]
    output = case.blank(shapes[case.rank])
    case.issue(lambda async_op: dist.reduce_scatter(output, inputs, case.op, case.group, async_op))
    return output


def reduce(case: Case) -> Any:
    tensor = case.chunk()
    root = case.members[case.root]
    case.issue(lambda async_op: dist.reduce(tensor, root, case.op, case.group, async_op))
    return tensor if case.rank == case.root else []


def all_gather(case: Case) -> Any:
    outputs = [case.blank(case.shape(peer, 0)) for peer in range(case.size)]
    source = case.source(case.shape(case.rank, 0))
    case.issue(lambda async_op: dist.all_gather(outputs, source, case.group, async_op))
    return outputs


def all_gather_into_tensor(case: Case) -> Any:
    if case.mode == "functional":
        return funcol.wait_tensor(funcol.all_gather_tensor(case.source(case.part), 0, case.group))
    if case.mode == "coalesced":
        sources = [case.source(case.part, salt) for salt in range(3)]
        outputs = [case.blank(case.whole_shape(case.part)) for _ in sources]
        pairs = zip(outputs, sources, strict=True)
        case.coalesced(lambda o=o, i=i: dist.all_gather_into_tensor(o, i, case.group) for o, i in pairs)
        return outputs
    output, source = case.blank(case.whole_shape(case.part)), case.source(case.part)
    if case.row.layout.endswith("aliased"):
        source = output.chunk(case.size)[case.rank].copy_(source)
    case.issue(lambda async_op: dist.all_gather_into_tensor(output, source, case.group, async_op))
    return output


def all_to_all(case: Case) -> Any:
    inputs = [case.source(case.shape(case.rank, peer), peer) for peer in range(case.size)]
    outputs = [case.blank(case.shape(peer, case.rank)) for peer in range(case.size)]
    if not case.plain:
        case.issue(lambda async_op: dist.all_to_all(outputs, inputs, case.group, async_op))
        return outputs
    # Gloo has none of lists: the lists are laid end to end.
    flat_input = torch.cat([tensor.reshape(-1) for tensor in inputs])
    flat_output = torch.cat([tensor.reshape(-1) for tensor in outputs])
    splits = [[tensor.numel() for tensor in tensors] for tensors in (outputs, inputs)]
    dist.all_to_all_single(flat_output, flat_input, *splits, group=case.group)
    return list(flat_output.split(splits[0]))


def all_to_all_single(case: Case) -> Any:
    splits: tuple[Any, Any] = (None, None)
    if case.row.layout == "uneven":
        input_splits = [case.shape(case.rank, peer)[0] for peer in range(case.size)]
        output_splits = [case.shape(peer, case.rank)[0] for peer in range(case.size)]
        splits = (output_splits, input_splits)
        output, source = case.blank((sum(output_splits),)), case.source((sum(input_splits),))
    else:
        shape = case.whole_shape(case.part)
        output, source = case.blank(shape), case.source(shape)
    if case.mode == "functional":
        return funcol.wait_tensor(funcol.all_to_all_single(source, *splits, case.group))
    case.issue(lambda async_op: dist.all_to_all_single(output, source, *splits, group=case.group, async_op=async_op))
    return output


def broadcast(case: Case) -> Any:
    tensor, root = case.chunk(), case.members[case.root]
    if case.mode == "functional":
        return funcol.wait_tensor(funcol.broadcast(tensor, case.root, case.group))
    case.issue(lambda async_op: dist.broadcast(tensor, root, case.group, async_op))
    return tensor


def gather(case: Case) -> Any:
    source, root = case.source(case.part), case.members[case.root]
    outputs = [case.blank(case.part) for _ in range(case.size)] if case.rank == case.root else None
    case.issue(lambda async_op: dist.gather(source, outputs, root, case.group, async_op))
    return outputs


def gather_single(case: Case) -> Any:
    source, root = case.source(case.part), case.members[case.root]
    output = case.blank(case.whole_shape(case.part)) if case.rank == case.root else None
    case.issue(lambda async_op: dist.gather_single(source, output, root, case.group, async_op))
    return output


def scatter(case: Case) -> Any:
    output, root = case.blank(case.part), case.members[case.root]
    inputs = [case.source(case.part, peer) for peer in range(case.size)] if case.rank == case.root else None
    case.issue(lambda async_op: dist.scatter(output, inputs, root, case.group, async_op))
    return output


def send_and_recv(case: Case) -> Any:
    """Pass something to the next rank of a ring, and take what the one before passes on."""
    if case.mode == "any source":
        return _from_anyone(case)
    following, before = (case.members[(case.rank + step) % case.size] for step in (1, -1))
    given, taken = case.chunk(), case.blank(case.part)
    if case.mode == "tags":
        return _in_another_order(case, following, before)
    if case.mode == "wait":
        works = [
            dist.isend(given, following, case.group, case.tag),
            dist.irecv(taken, before, case.group, case.tag),
        ]
    elif case.mode == "batched":
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, given, following, case.group, case.tag),
                dist.P2POp(dist.irecv, taken, before, case.group, case.tag),
            ]
        )
    else:
        works = []
        turns: list[Callable[[], Any]] = [
            lambda: dist.send(given, following, case.group, case.tag),
            lambda: dist.recv(taken, before, case.group, case.tag),
        ]
        for turn in turns if case.rank == 0 else reversed(turns):
            turn()
    for work in works:
        work.wait()
    return taken


def _from_anyone(case: Case) -> Any:
    """Take from whoever sends: one at a time, for Gloo now and then loses one of several at once."""
    root, turn = case.members[case.root], torch.zeros(1)
    turn_tag = 10 * case.tag
    if case.rank != case.root:
        dist.recv(turn, root, case.group, turn_tag)
        dist.send(case.chunk(), root, case.group, case.tag)
        return []
    received = []
    for peer in case.members:
        if peer != root:
            dist.send(turn, peer, case.group, turn_tag)
            received.append(case.blank(case.part))
            assert dist.recv(received[-1], None, case.group, case.tag) == peer
    return received


def _in_another_order(case: Case, following: int, before: int) -> Any:
    tags = [case.tag, 10 * case.tag]
    given = [case.chunk(salt) for salt in range(2)]
    works = [dist.isend(tensor, following, case.group, tag) for tensor, tag in zip(given, tags, strict=True)]
    taken = {tag: case.blank(case.part) for tag in tags}
    for tag in reversed(tags):
        dist.recv(taken[tag], before, case.group, tag)
    for work in works:
        work.wait()
    return list(taken.values())


CALLS: dict[str, Callable[[Case], Any]] = {
    "all_reduce": all_reduce,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "reduce_scatter": reduce_scatter,
    "reduce": reduce,
    "all_gather": all_gather,
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "broadcast": broadcast,
    "gather": gather,
    "gather_single": gather_single,
    "scatter": scatter,
    "send and recv": send_and_recv,
}
# Names that not every torch has.
MISSING = {name for name in ("gather_single",) if not hasattr(dist, name)}


def call(case: Case) -> list[torch.Tensor]:
    """Make the row's call. Returns what it wrote, then what it must leave alone, then what its future held."""
    with case.label():
        written = flattened(CALLS[case.row.collective](case))
    return written if case.plain or case.premultiplied else written + case.inputs + case.future
