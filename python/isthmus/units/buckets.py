"""DDP's buckets as units: the communication hook that names them."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from isthmus import native
from isthmus.backends import group_on_isthmus
from isthmus.torch_private.models import unlist_newest_hook
from isthmus.units.copies import why_bucket_is_exact
from isthmus.units.layout import Layout, Parameter, clean_name
from isthmus.units.models import Unit, bucket_unit
from isthmus.units.owners import number_of
from isthmus.units.prepared import Prepared

if TYPE_CHECKING:
    from isthmus import _C

_PASSES_BEFORE_REBUILD = 2


def bucket_parameters(module: nn.parallel.DistributedDataParallel) -> dict[torch.Tensor, Parameter]:
    """Return the parameters that DDP reduces."""
    return {
        parameter: Parameter(clean_name(name), tuple(parameter.shape))
        for name, parameter in module.module.named_parameters()
    }


class BucketReduction:
    """DDP's communication hook: averages each bucket, and tells the backend which parameters it holds.

    DDP takes one hook and never gives it back: after `end` the hook averages as DDP does.

    DDP rebuilds its buckets after the first backward pass, or after the second with a static graph. Residuals of the
    first buckets would never be sent, so each layout is exact in the first two passes that have it.
    """

    def __init__(self, module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
        self._parameters = bucket_parameters(module)
        self._group = module.process_group
        self._owner = number_of(module)
        self._mesh = getattr(module, "device_mesh", None)
        self._layouts: dict[tuple[int, tuple[torch.Tensor, ...]], tuple[Unit, Layout, _C.Reason | None]] = {}
        self.begin(prepared)

    def begin(self, prepared: Prepared) -> None:
        """Reduce under the names of `prepared` from now on, and treat all buckets as new."""
        self.prepared: Prepared | None = prepared
        self._passes: Counter[tuple[str, int]] = Counter()  # how many backward passes had each bucket

    def end(self) -> None:
        """Reduce over the group that DDP was given from now on."""
        self.prepared = None

    def reduce(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations, and fails on strings
        """Average one bucket; return a future of its gradients."""
        prepared, group = self.prepared, group_on_isthmus(self._group)
        gradients = bucket.buffer()
        if prepared is None or group is None:
            gradients.div_(self._group.size())
            return dist.all_reduce(gradients, group=self._group, async_op=True).get_future().then(lambda _: gradients)
        unit, layout, replicas = self._unit_of(bucket.index(), tuple(bucket.parameters()))
        name, layout_hash = prepared.full_name(unit.name), prepared.remember(layout)
        exact = prepared.exact_reason(unit.name) or replicas
        exact = exact or self._exact_until_settled(prepared.settled, (name, layout_hash))
        core = native.load()
        core.push_unit(name, layout_hash, exact, self._owner)
        try:
            work = dist.all_reduce(gradients, op=dist.ReduceOp.AVG, group=group, async_op=True)
        finally:
            core.pop_unit()
        return work.get_future().then(lambda _: gradients)

    def _unit_of(self, index: int, tensors: tuple[torch.Tensor, ...]) -> tuple[Unit, Layout, _C.Reason | None]:
        """Return the bucket's unit and layout, and why copies keep it exact; None if they do not."""
        if (index, tensors) not in self._layouts:
            unit = bucket_unit(index, [self._parameters[tensor] for tensor in tensors], self._group)
            self._layouts[index, tensors] = (unit, unit.layout(), why_bucket_is_exact(tensors, self._group, self._mesh))
        return self._layouts[index, tensors]

    def _exact_until_settled(self, settled: set[tuple[str, int]], bucket: tuple[str, int]) -> _C.Reason | None:
        if bucket in settled:
            return None
        self._passes[bucket] += 1
        if self._passes[bucket] <= _PASSES_BEFORE_REBUILD:
            reason: _C.Reason = native.load().Reason.FIRST_BUCKETS
            return reason
        settled.add(bucket)
        return None


_bucket_reductions: weakref.WeakKeyDictionary[nn.Module, BucketReduction] = weakref.WeakKeyDictionary()


def register_bucket_hook(module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
    """Let DDP reduce under the names of `prepared`. Raises ValueError if DDP has another communication hook."""
    earlier = _bucket_reductions.get(module)
    if earlier is not None and earlier.prepared is None:
        earlier.begin(prepared)
        return
    reduction = BucketReduction(module, prepared)
    try:
        module.register_comm_hook(None, reduction.reduce)
    except RuntimeError as error:
        raise ValueError("this DDP model has a communication hook already, and DDP takes but one") from error
    _bucket_reductions[module] = reduction
    # DDP pickles this list, but a copy's reducer has no hooks: a copy of a prepared model is not prepared.
    unlist_newest_hook(module)


def end_bucket_hook(module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
    """Undo `register_bucket_hook`, if DDP reduces under the names of `prepared`."""
    reduction = _bucket_reductions.get(module)
    if reduction is not None and reduction.prepared is prepared:
        reduction.end()
