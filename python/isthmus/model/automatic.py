"""What the native module asks about FSDP; models of FSDP2 that nobody prepared prepare themselves then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from isthmus.base import native
from isthmus.model.calls import call_of, unit_of
from isthmus.model.collectives import stream_of_shard
from isthmus.model.copies import why_fsdp1_is_exact
from isthmus.model.layout import clean_name
from isthmus.model.models import held_unit
from isthmus.model.prepare import prepare_itself
from isthmus.model.units import prepared_units
from isthmus.torch_private.callers import beginning_pass, gathering_object, reduction_of, why_not_reduction_of
from isthmus.torch_private.models import first_name_of, modules_of, root_of

if TYPE_CHECKING:
    from isthmus import _C


def pass_begins() -> None:
    """Let the model of FSDP2 whose forward pass begins on this thread prepare itself.

    All ranks begin their first passes in one order, so numbers of models of equal names are equal. Gradients would come
    too late: backward passes may run in any order.
    """
    module = beginning_pass()
    root = root_of(module) if module is not None else None
    if root is not None:
        prepare_itself(root, begins_pass=module is root)


def fsdp_caller(backend: _C.Backend, output: torch.Tensor, input: torch.Tensor) -> _C.UnitCall | _C.Reason | None:
    """Return what FSDP is reducing.

    If FSDP does not reduce these tensors: why, or None if that is not known. All-reduces pass one tensor as both output
    and input.
    """
    found = reduction_of(output, input)
    if found is None:
        Reason = native.load().Reason
        return {"complex": Reason.NO_SUM, "custom": Reason.OWN_REDUCE_SCATTER}.get(why_not_reduction_of(output))
    reducer, parameters = found
    if isinstance(parameters, tuple):
        if reducer not in prepared_units:  # torch did not tell that a pass began
            module = modules_of(reducer)[0]
            prepare_itself(root_of(module) or module)
        call = call_of(reducer, parameters, backend)
        call.input_stream = stream_of_shard(reducer, input) if output is input else None
        return call
    if parameters in prepared_units:
        unit = unit_of(parameters, backend)
    else:
        shape = f"{str(input.dtype).removeprefix('torch.')}:{input.numel()}"
        exact = why_fsdp1_is_exact(parameters, reducer)
        unit = held_unit(parameters, backend, lambda: backend.unit(f"fsdp1:{shape}", exact=exact, counted=True))
    made: _C.UnitCall = native.load().UnitCall(unit)
    return made


def weights_caller(backend: _C.Backend) -> _C.Unit | None:
    """Return the unit whose parameters are being gathered on this thread's stack.

    None if the call is not known to gather parameters.
    """
    gatherer = gathering_object()
    if (first := first_name_of(gatherer)) is not None:
        name = f"fsdp1:{clean_name(first)}"
        return held_unit(gatherer, backend, lambda: backend.unit(name, counted=True), "weights")
    return unit_of(gatherer, backend) if gatherer is not None and gatherer in prepared_units else None
