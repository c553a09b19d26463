"""One row of the table on one group: its tensors, and how the call is waited for."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from rows import PREMULTIPLYING, SUMS, Row, is_asked_plainly

import isthmus

FACTOR = 0.375
PATIENCE = timedelta(seconds=30)
# The elements of one rank's part of a collective.
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

    With `reference` the same result is asked for in another way, for rows that Gloo itself refuses or is not asked for:
    where the operator multiplies, as a plain sum of numbers that are multiplied beforehand; else, and where Gloo is not
    asked, with contiguous tensors, synchronously.
    """

    def __init__(self, row: Row, group: dist.ProcessGroup, tag: int, reference: bool = False) -> None:
        self.row = row
        self.group = group
        self.tag = tag
        self.premultiplied = reference and row.op in PREMULTIPLYING
        self.plain = reference and (is_asked_plainly(row) or not self.premultiplied)
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
        return {"sum": 1.0, "avg": 1.0 / self.size}.get(self.row.op, FACTOR)

    def label(self) -> AbstractContextManager[Any]:
        if self.row.label == "gradient":
            return isthmus.unit("x")
        return nullcontext()

    def shape(self, sender: int, receiver: int) -> tuple[int, ...]:
        """The elements that one rank of the group has for another."""
        return (sender + 2 * receiver,) if self.row.layout == "uneven" else self.part

    @property
    def part(self) -> tuple[int, ...]:
        shape = SHAPES[self.row.layout]
        return shape or (1,) if self.plain else shape

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The elements of the parts of all ranks, one after the other."""
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
        if self.mode == "sync":
            call(async_op=False)
            return
        work = call(async_op=True)
        if self.mode == "wait":
            work.wait(PATIENCE)
        else:
            # Backends differ in how many tensors a future holds.
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
