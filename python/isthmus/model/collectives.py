"""What FSDP2's units get in place of FSDP2's collectives: it knows its unit, and when its input is there."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from isthmus.base import native
from isthmus.base.backends import companion_of, isthmus_backend
from isthmus.model.calls import call_of, unit_of
from isthmus.model.models import shard_group
from isthmus.model.prefetch import Prefetch
from isthmus.model.units import Unit, prepared_units
from isthmus.torch_private.callers import reduction_of
from isthmus.torch_private.models import (
    ParamGroup,
    collectives_of,
    modules_of,
    param_groups_of,
    section_elements,
    trainable_indexes,
)

if TYPE_CHECKING:
    from isthmus import _C

# Names of torch's own collectives for a unit: plain ones, and ones in the process group's memory.
_TORCHS = re.compile(r"(Default|ProcessGroupAlloc)(AllGather|ReduceScatter)")


class _Collective:
    """The base of both collectives. Refers to its unit weakly, as the unit holds it.

    own: the unit's collective of torch, which it calls. So whoever watches or replaces the function of
    `torch.distributed` that this torch's FSDP2 calls sees these calls, too, whatever that function is called.

    On a GPU, FSDP2 calls a collective on a stream of its own, which is also behind the previous unit's collective. But
    it fills the input on the stream on which it allocates it, and enqueues nothing else there before the call. So the
    work of that stream is what a collective must wait for before it reads its input.

    Who may write the output: torch's allocator gives a block that was freed to the next allocation on the same stream,
    while that stream's earlier work may still use it. FSDP2 allocates a reduction's output on the stream of the call,
    so what writes it waits for that stream, too. A gather's output is one block with its input, and is freed only once
    the stream on which it was allocated waits for its last use; so a gather need not wait for any other stream.
    """

    def __init__(self, unit: ParamGroup, own: Any) -> None:
        self._unit = weakref.ref(unit)
        self._own = own
        self._allocated_on: MutableMapping[torch.Tensor, torch.cuda.Stream] = WeakIdKeyDictionary()
        self._group: Callable[[], dist.ProcessGroup | None] = lambda: None  # of the latest call
        self._target: Callable[[], dist.ProcessGroup | None] = lambda: None
        self._call: _C.UnitCall | None = None  # None: the target's backend is another one

    def _over(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """Return the group that a call of FSDP2 over `group` goes over: the companion of that, if it has one."""
        target = self._target() if self._group() is group else None
        if target is None:
            own = self._group_of(group)
            target = companion_of(own) or own
            self._group, self._target = weakref.ref(group), weakref.ref(target)
            backend = isthmus_backend(target)
            self._call = None if backend is None else self._call_over(backend)
        return target

    def _group_of(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        return group

    def _call_over(self, backend: _C.Backend) -> _C.UnitCall:
        raise NotImplementedError

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate from torch's allocator, on the current stream, as torch's own collectives do."""
        tensor = torch.empty(*size, dtype=dtype, device=device)
        if device.type == "cuda":
            self._allocated_on[tensor] = torch.cuda.current_stream(device)
        return tensor

    def _stream_of(self, tensor: torch.Tensor) -> int | None:
        """Return the stream on which `tensor` was allocated, None if that is not known."""
        stream = self._allocated_on.get(tensor) if tensor.is_cuda else None
        return None if stream is None else stream.cuda_stream


class UnitAllGather(_Collective):
    """Gathers the weights of one unit of FSDP2. prefetch: learns when it does."""

    def __init__(self, unit: ParamGroup, own: Any, prefetch: Prefetch | None = None) -> None:
        super().__init__(unit, own)
        self._prefetch = prefetch
        self._sends_differences = False

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather over the companion of `group`, or over `group` itself if it has none.

        FSDP2 calls this on the thread and the stream of its gathers. Tensors, Work and errors are as in its own
        collective. But on a GPU, where weights cross as differences or another unit is gathered next, it returns a Work
        in any case: FSDP2 waits for it before it copies the weights out, and that is when the gather's second half is
        done, and the next gather begins.
        """
        unit, prefetch = self._unit(), self._prefetch
        is_followed = prefetch is not None and prefetch.gathers(unit)
        group, call = self._over(group), self._call
        in_halves = output_tensor.is_cuda and self._sends_differences
        if call is not None:
            call.in_halves, call.input_stream = in_halves, self._stream_of(output_tensor)
        with call or nullcontext():
            work: dist.Work | None = self._own(
                output_tensor, input_tensor, group=group, async_op=async_op or in_halves or is_followed
            )
        if work is None or prefetch is None or not is_followed:
            return work
        return _Followed(work, lambda: prefetch.waited(unit))

    def _call_over(self, backend: _C.Backend) -> _C.UnitCall:
        self._sends_differences = backend.options.sends_differences
        made: _C.UnitCall = native.load().UnitCall(unit_of(self._unit(), backend))
        return made


class _Followed(dist.Work):
    """A Work, and what is done once it is waited for."""

    def __init__(self, work: dist.Work, then: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._then = then

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait as torch's Works do."""
        is_done: bool = self._work.wait() if timeout is None else self._work.wait(timeout)
        self._then()
        return is_done


class UnitReduceScatter(_Collective):
    """Reduce-scatters the gradients of one prepared unit of FSDP2."""

    def __init__(self, unit: ParamGroup, own: Any) -> None:
        super().__init__(unit, own)
        self._trained: tuple[int, ...] = ()  # what the call reduces
        self._num_elements = 0  # of its input

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce over the companion of the unit's group, or over that group itself if it has none.

        FSDP2 calls this on the thread and the stream of its reductions. Tensors, Work and errors are as in its own
        collective.
        """
        unit = self._unit()
        group, call = self._over(group), self._call
        if call is not None:
            trained = trainable_indexes(unit)
            if trained != self._trained or input_tensor.numel() != self._num_elements:
                call = self._other_call(unit, trained, output_tensor, input_tensor)
            # FSDP2 divides an input of another type on the stream of the call.
            is_as_filled = input_tensor.dtype in (torch.float32, torch.bfloat16)
            call.input_stream = self._stream_of(input_tensor) if is_as_filled else None
        with call or nullcontext():
            work: dist.Work | None = self._own(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
        return work

    def _group_of(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        return shard_group(self._unit()) or group

    def _call_over(self, backend: _C.Backend) -> _C.UnitCall:
        unit = self._unit()
        self._trained = trainable_indexes(unit)
        row_elements = sum(section_elements(unit, index) for index in self._trained)
        self._num_elements = row_elements * len(backend.global_ranks)
        return call_of(unit, self._trained, backend)

    def _other_call(
        self, unit: ParamGroup, trained: tuple[int, ...], output: torch.Tensor, input: torch.Tensor
    ) -> _C.UnitCall:
        """Return the call of a reduction of other parameters than the one before.

        The input's size tells whether all that are trained have gradients; only if not, this searches the stack.
        """
        target = self._target()
        backend = isthmus_backend(target) if target is not None else None
        assert backend is not None  # _over() has found it
        if trained != self._trained:
            self._call = self._call_over(backend)
            if input.numel() == self._num_elements:
                return self._call
        found = reduction_of(output, input)
        if found is not None and found[0] is unit:
            return call_of(unit, found[1], backend)
        core = native.load()
        made: _C.UnitCall = core.UnitCall(unit_of(unit, backend), exact=core.Reason.UNKNOWN_SET)
        return made


def stream_of_shard(unit: ParamGroup, shard: torch.Tensor) -> int | None:
    """Return the stream that alone makes the shard which FSDP2 all-reduces; None if that is not known, and on the CPU.

    The all-reduce is called on a stream that is also behind the previous unit's. But FSDP2 reduce-scatters, adds up
    what earlier passes left, and allocates the shard on one stream, which the other one has just waited for. This
    holds where our own collective stands between, and not a program's.
    """
    _, reduce = collectives_of(unit)
    return reduce._stream_of(shard) if isinstance(reduce, UnitReduceScatter) else None


def replace_collectives(unit: ParamGroup, prefetch: Prefetch | None) -> tuple[Any, Any]:
    """Hand FSDP2 our collectives for a unit. Returns its own. prefetch: learns of each gather.

    What is being gathered arrives as it was begun.
    """
    gather, reduce = own = collectives_of(unit)
    _set_collectives(unit, UnitAllGather(unit, gather, prefetch), UnitReduceScatter(unit, reduce))
    return own


def give_back(unit: ParamGroup, own: tuple[Any, Any]) -> None:
    """Hand FSDP2 its own collectives of a unit again. What the program has put in the place of ours since stays."""
    _set_collectives(
        unit,
        *(old if isinstance(live, _Collective) else live for old, live in zip(own, collectives_of(unit), strict=True)),
    )


def replaced_collectives() -> Iterator[tuple[Unit, str]]:
    """Yield units whose collectives the program has replaced since they were ours, with the names of what is there."""
    for unit, record in prepared_units.items():
        if record.collectives is not None:
            gather, reduce = collectives_of(unit)
            live = {"all-gather": gather, "reduce-scatter": reduce}
            others = [
                f"{what} {type(each).__name__}" for what, each in live.items() if not isinstance(each, _Collective)
            ]
            if others:
                yield record, ", ".join(others)


def _set_collectives(unit: ParamGroup, all_gather: Any, reduce_scatter: Any) -> None:
    module: Any = modules_of(unit)[0]
    module.set_custom_all_gather(all_gather)
    module.set_custom_reduce_scatter(reduce_scatter)


def why_not_replaceable(unit: ParamGroup) -> str:
    """Return why the collectives of a unit cannot be replaced, "" if they can."""
    siblings = param_groups_of(modules_of(unit)[0])
    if len(siblings) > 1:
        return f"has {len(siblings)} groups of parameters, and torch takes no other collectives for several"
    for kind in map(type, collectives_of(unit)):
        if issubclass(kind, _Collective):
            return "belongs to another attached model: detach that first"
        if not kind.__module__.startswith("torch.") or not _TORCHS.fullmatch(kind.__name__):
            return f"has a {kind.__name__} of its own already: take that away first"
    return ""
