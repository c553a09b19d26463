"""Makes the call that a row describes, on whichever group it is given, and returns every tensor that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from rows import PREMULTIPLYING, SUMS, Row

import isthmus

FACTOR = 0.375
PATIENCE = timedelta(seconds=30)
# Of one rank's part of a collective.
SHAPES = {
    "12": (12,),
    "1": (1,),
    "0": (0,),
    "odd": (7,),
    "large": (1030,),
    "2-D": (3, 5),
    "3-D": (2, 3, 4),
    "scalar": (),
    "special values": (12,),
    "strided": (12,),
    "large and strided": (1030,),
    "column": (4, 3),
    "transposed": (3, 5),
    "offset": (12,),
    "channels last": (2, 3, 2, 2),
    "stacked": (12,),
    "aliased": (12,),
    "large and aliased": (1030,),
    "sparse": (12,),
}


def _strided(values: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(2 * values.numel())[::2].copy_(values)


def _column(values: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(*values.shape, 2)[..., 1].copy_(values)


def _offset(values: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(values.numel() + 5)[3:-2].copy_(values)


def _sparse(values: torch.Tensor) -> torch.Tensor:
    """Leave out a part that is not the same on every rank."""
    indices = torch.arange(dist.get_rank(), values.numel())
    return torch.sparse_coo_tensor(indices[None], values[dist.get_rank() :], values.shape)


ARRANGEMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": _strided,
    "large and strided": _strided,
    "column": _column,
    "transposed": lambda values: values.t().contiguous().t(),
    "offset": _offset,
    "channels last": lambda values: values.to(memory_format=torch.channels_last),
    "sparse": _sparse,
}


def values(dtype: torch.dtype, shape: Iterable[int], seed: int) -> torch.Tensor:
    """Return the same numbers at every call with this seed: of any type, so that any rank knows any other's."""
    shape = tuple(shape)
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex128, generator=generator).to(dtype)
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    if dtype == torch.bool or not dtype.is_floating_point:
        return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)
    return torch.randint(0, 120, shape, dtype=torch.uint8, generator=generator).view(dtype)


def with_special_values(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        return tensor
    flat = tensor.view(-1)
    flat[0::6] = 0.0 if rank % 2 else -0.0
    flat[1::6] = torch.finfo(tensor.dtype).smallest_normal / 4
    if rank == 1:
        flat[2::6] = torch.nan
        flat[3::6] = torch.inf
    return tensor


class Case:
    """One row on one group.

    With `reference` the same result is asked for in another way, for rows that Gloo itself refuses: where the operator
    multiplies, as a plain sum of numbers that are multiplied beforehand; else with contiguous tensors, synchronously.
    """

    def __init__(self, row: Row, group: dist.ProcessGroup, tag: int, reference: bool = False) -> None:
        self.row = row
        self.group = group
        self.tag = tag
        self.premultiplied = reference and row.op in PREMULTIPLYING
        self.plain = reference and not self.premultiplied
        self.members = dist.get_process_group_ranks(group)
        self.rank = dist.get_rank(group)
        self.size = len(self.members)
        self.root = self.size // 2
        self.dtype: torch.dtype = getattr(torch, row.dtype)
        self.inputs: list[torch.Tensor] = []  # which the call must leave as they are
        self.future: list[torch.Tensor] = []  # what the call's future held

    @property
    def mode(self) -> str:
        return "sync" if self.plain else self.row.mode

    @property
    def op(self) -> Any:
        if self.premultiplied:
            return dist.ReduceOp.SUM
        if self.row.op in PREMULTIPLYING:
            factor = torch.tensor([FACTOR]) if self.row.op.endswith("tensor") else FACTOR
            return dist._make_nccl_premul_sum(factor)
        return getattr(dist.ReduceOp, self.row.op.upper())

    @property
    def scale(self) -> float:
        """What a sum is multiplied by."""
        return {"sum": 1.0, "avg": 1.0 / self.size}.get(self.row.op, FACTOR)

    def label(self) -> AbstractContextManager[Any]:
        if self.row.label == "gradient":
            return isthmus.unit("x")
        return nullcontext()

    def shape(self, sender: int, receiver: int) -> tuple[int, ...]:
        """Of what one rank of the group has for another."""
        return (sender + 2 * receiver,) if self.row.layout == "uneven" else self.part

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of one rank's part."""
        shape = SHAPES[self.row.layout]
        return shape or (1,) if self.plain else shape

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the parts of all ranks, one after the other."""
        if self.row.layout == "stacked" and not self.plain:
            return (self.size, *shape)
        return (self.size * shape[0], *shape[1:]) if shape else (self.size,)

    def source(self, shape: tuple[int, ...], salt: int = 0) -> torch.Tensor:
        """Return what this rank puts in, and remember to look at it afterwards."""
        self.inputs.append(self.own(shape, salt))
        return self.inputs[-1]

    def own(self, shape: tuple[int, ...], salt: int = 0, rank: int | None = None) -> torch.Tensor:
        """Return what this rank (or another) puts in, in the row's layout."""
        rank = self.rank if rank is None else rank
        tensor = values(self.dtype, shape, 1000 * salt + rank)
        if self.row.layout == "special values":
            tensor = with_special_values(tensor, rank)
        if self.premultiplied:
            tensor = (tensor * FACTOR).to(self.dtype)
        return self.arranged(tensor)

    def chunk(self, salt: int = 0, rank: int | None = None) -> torch.Tensor:
        return self.own(self.part, salt, rank)

    def whole(self, salt: int = 0, rank: int | None = None) -> torch.Tensor:
        return self.own(self.whole_shape(self.part), salt, rank)

    def blank(self, shape: tuple[int, ...]) -> torch.Tensor:
        elements = torch.Size(shape).numel()
        tensor = torch.zeros(elements * self.dtype.itemsize, dtype=torch.uint8).view(self.dtype)
        return self.arranged(tensor.view(shape))

    def arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        arrange = ARRANGEMENTS.get(self.row.layout)
        return tensor if arrange is None or self.plain else arrange(tensor)

    def issue(self, call: Callable[..., Any]) -> None:
        """Make the call and wait for it in the way that the row says."""
        if self.mode == "sync":
            call(async_op=False)
            return
        work = call(async_op=True)
        if self.mode == "wait":
            work.wait(PATIENCE)
        else:
            # How many tensors a future holds is each backend's own affair.
            self.future = end_to_end(flattened(work.get_future().wait()))

    def coalesced(self, calls: Iterable[Callable[[], Any]]) -> None:
        with dist._coalescing_manager(self.group, async_ops=True) as manager:
            for call in calls:
                call()
        manager.wait()


def flattened(nested: Any) -> list[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        return [nested]
    return [tensor for part in nested or [] for tensor in flattened(part)]


def end_to_end(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
    return [torch.cat([tensor.reshape(-1) for tensor in dense])] if dense else []


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


def is_labelled_sum(row: Row) -> bool:
    """Tell whether Isthmus takes the row for a reduction of gradients, which it may sum in another order."""
    floating = row.dtype in ("float32", "bfloat16", "float16", "float64")
    # torch hands the complex numbers of an all-reduce over as pairs of real ones.
    pairs = row.dtype.startswith("complex") and row.collective == "all_reduce"
    return row.label == "gradient" and row.op in SUMS and (floating or pairs) and row.layout != "sparse"


def has_plainer_form(row: Row) -> bool:
    """Tell whether Gloo, where it refuses a row, may give the same result when it is asked for as in a reference."""
    return (
        row.op in PREMULTIPLYING
        or row.mode == "future"
        or row.collective == "all_to_all"
        or row.layout in ("scalar", "stacked", "large and strided", *ARRANGEMENTS)
    )
