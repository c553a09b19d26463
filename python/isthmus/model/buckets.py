"""DDP's buckets as units: the communication hook that names them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus.base import native
from isthmus.base.backends import backend_of, group_on_isthmus
from isthmus.model.copies import why_bucket_is_exact
from isthmus.model.layout import Layout, Parameter, clean_name, concatenated
from isthmus.model.models import held_unit
from isthmus.model.units import PASSES_BEFORE_REBUILD, Prepared
from isthmus.torch_private.models import unlist_newest_hook

if TYPE_CHECKING:
    from isthmus import _C


def bucket_parameters(module: nn.parallel.DistributedDataParallel) -> dict[torch.Tensor, Parameter]:
    """Return the parameters that DDP reduces."""
    return {
        parameter: Parameter(clean_name(name), tuple(parameter.shape))
        for name, parameter in module.module.named_parameters()
    }


class BucketReduction:
    """DDP's communication hook: averages each bucket, and tells the backend which parameters it holds.

    DDP takes one hook and never gives it back: without `prepared` the hook averages as DDP does.

    Residuals of buckets that DDP rebuilds would never be sent: each layout is exact in the first passes that have it.
    """

    def __init__(self, module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
        self._parameters = bucket_parameters(module)
        self._group = module.process_group
        self._module = weakref.ref(module)
        self._mesh = getattr(module, "device_mesh", None)
        self._layouts: dict[tuple[torch.Tensor, ...], tuple[Layout, _C.Reason | None]] = {}
        self.prepared: Prepared | None = prepared

    def reduce(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations, and fails on strings
        """Average one bucket; return a future of its gradients."""
        prepared, group = self.prepared, group_on_isthmus(self._group)
        gradients = bucket.buffer()
        if prepared is None or group is None:
            gradients.div_(self._group.size())
            return _future_of(gradients, dist.all_reduce(gradients, group=self._group, async_op=True))
        layout, why_copies = self._layout_of(tuple(bucket.parameters()))
        unit_name = f"bucket {bucket.index()}"
        key = prepared.full_name(unit_name), layout.hash
        prepared.bucket_passes[key] += 1
        exact = prepared.exact_reason(unit_name) or why_copies
        if exact is None and prepared.bucket_passes[key] <= PASSES_BEFORE_REBUILD:
            exact = native.load().Reason.FIRST_BUCKETS
        with self._call(key, layout, backend_of(group), exact):
            work = dist.all_reduce(gradients, op=dist.ReduceOp.AVG, group=group, async_op=True)
        return _future_of(gradients, work)

    def _call(self, key: tuple[str, int], layout: Layout, backend: _C.Backend, exact: _C.Reason | None) -> _C.UnitCall:
        unit = held_unit(self._module(), backend, lambda: backend.unit(*key, parameters=layout.to_json()), key)
        made: _C.UnitCall = native.load().UnitCall(unit, exact=exact)
        return made

    def _layout_of(self, tensors: tuple[torch.Tensor, ...]) -> tuple[Layout, _C.Reason | None]:
        """Return the layout of a bucket, and why copies keep it exact; None if they do not."""
        if tensors not in self._layouts:
            layout = concatenated(self._parameters[tensor] for tensor in tensors)
            self._layouts[tensors] = layout, why_bucket_is_exact(tensors, self._group, self._mesh)
        return self._layouts[tensors]


def _future_of(gradients: torch.Tensor, work: Any) -> torch.futures.Future[torch.Tensor]:
    """Return a future that fails as the work does, so that DDP's backward pass raises."""

    def value(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()
        return gradients

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(value)
    return future


_bucket_reductions: weakref.WeakKeyDictionary[nn.Module, BucketReduction] = weakref.WeakKeyDictionary()


def register_bucket_hook(module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
    """Let DDP reduce under the names of `prepared`. Raises ValueError if DDP has another communication hook."""
    earlier = _bucket_reductions.get(module)
    if earlier is not None and earlier.prepared is None:
        earlier.prepared = prepared
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
        reduction.prepared = None
