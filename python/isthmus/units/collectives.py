"""What FSDP2's units get in place of FSDP2's collectives: it knows its unit, and when its input is there."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.backends import companion_of, isthmus_backend
from isthmus.torch_private.callers import reduction_of
from isthmus.torch_private.models import ParamGroup, collectives_of, modules_of, param_groups_of, trainable_indexes
from isthmus.units.models import number_of, shard_group
from isthmus.units.prefetch import Prefetch
from isthmus.units.prepared import PreparedUnit, Tag, tag_of, units_of_groups

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

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate from torch's allocator, on the current stream, as torch's own collectives do."""
        tensor = torch.empty(*size, dtype=dtype, device=device)
        if device.type == "cuda":
            self._allocated_on[tensor] = torch.cuda.current_stream(device)
        return tensor

    @contextmanager
    def _behind_the_stream_of(self, tensor: torch.Tensor) -> Iterator[None]:
        """Let this thread's collectives in the block begin behind the stream on which `tensor` was allocated."""
        stream = self._allocated_on.get(tensor)
        if stream is None:
            yield
            return
        native.load().set_input_stream(stream.cuda_stream)
        try:
            yield
        finally:
            native.load().set_input_stream(None)


class UnitAllGather(_Collective):
    """Gathers the weights of one unit of FSDP2. prefetch: learns when it does."""

    def __init__(self, unit: ParamGroup, own: Any, prefetch: Prefetch | None = None) -> None:
        super().__init__(unit, own)
        self._prefetch = prefetch

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
        group = companion_of(group) or group
        in_halves = output_tensor.is_cuda and _sends_differences(group)
        pushed = native.unit_pushed(units_of_groups[unit].full_name, owner=number_of(unit), in_halves=in_halves)
        with pushed, self._behind_the_stream_of(output_tensor):
            work: dist.Work | None = self._own(
                output_tensor, input_tensor, group=group, async_op=async_op or in_halves or is_followed
            )
        if work is None or prefetch is None or not is_followed:
            return work
        return _Followed(work, lambda: prefetch.waited(unit))


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


def _sends_differences(group: dist.ProcessGroup) -> bool:
    backend = isthmus_backend(group)
    return backend is not None and backend.options.sends_differences


class UnitReduceScatter(_Collective):
    """Reduce-scatters the gradients of one prepared unit of FSDP2."""

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
        shards = shard_group(unit)
        group = shards or group
        pushed = native.unit_pushed(*_tag_of_reduction(unit, shards, output_tensor, input_tensor))
        # FSDP2 divides an input of another type on the stream of the call.
        is_as_filled = input_tensor.dtype in (torch.float32, torch.bfloat16)
        with pushed, self._behind_the_stream_of(input_tensor) if is_as_filled else nullcontext():
            work: dist.Work | None = self._own(
                output_tensor, input_tensor, group=companion_of(group) or group, op=op, async_op=async_op
            )
        return work


def _tag_of_reduction(
    unit: ParamGroup, shards: dist.ProcessGroup | None, output: torch.Tensor, input: torch.Tensor
) -> Tag:
    """Return the tag of a unit that its own collective reduces. shards: its `shard_group`.

    The input's size tells whether all trainable parameters have gradients; only if not, this searches the stack.
    """
    tag = tag_of(unit, trainable_indexes(unit))
    if shards is not None and tag[-1].row_elements * shards.size() == input.numel():
        return tag
    found = reduction_of(output, input)
    if found is not None and found[0] is unit:
        return tag_of(*found)
    name, layout, _, owner, _ = tag
    return name, layout, native.load().Reason.UNKNOWN_SET, owner, None


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


def replaced_collectives() -> Iterator[tuple[PreparedUnit, str]]:
    """Yield units whose collectives the program has replaced since they were ours, with the names of what is there."""
    for unit, record in units_of_groups.items():
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
