"""What the native module asks about FSDP; models of FSDP2 that nobody prepared prepare themselves then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from isthmus import native
from isthmus.torch_private.callers import beginning_pass, gathering_object, reduction_of, why_not_reduction_of
from isthmus.torch_private.models import first_name_of, flat_parameter_of, modules_of, root_of
from isthmus.units.copies import why_fsdp1_is_exact
from isthmus.units.layout import clean_name
from isthmus.units.models import number_of
from isthmus.units.prepare import prepare_itself
from isthmus.units.prepared import Tag, names_of_dtensors, tag_of, units_of_groups

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


def fsdp_caller(output: torch.Tensor, input: torch.Tensor) -> tuple[Tag, torch.Tensor | None] | _C.Reason | None:
    """Return the unit that FSDP is reducing, and FSDP1's flat parameter, which stands for the name of FSDP1's unit.

    If FSDP does not reduce these tensors: why, or None if that is not known. All-reduces pass one tensor as both output
    and input.
    """
    found = reduction_of(output, input)
    if found is None:
        Reason = native.load().Reason
        return {"complex": Reason.NO_SUM, "custom": Reason.OWN_REDUCE_SCATTER}.get(why_not_reduction_of(output))
    reducer, parameters = found
    if isinstance(parameters, tuple):
        if reducer not in units_of_groups:  # torch did not tell that a pass began
            module = modules_of(reducer)[0]
            prepare_itself(root_of(module) or module)
        return tag_of(reducer, parameters), None
    tag = ("", 0, why_fsdp1_is_exact(parameters, reducer), number_of(parameters), None)
    return tag, flat_parameter_of(parameters)


def weights_caller() -> tuple[int, str]:
    """Return the owner and the name of the unit whose parameters are being gathered on this thread's stack.

    The owner is a number of this process, 0 if there is no unit on the stack: then the call is not known to gather
    parameters. The name is equal on all ranks.
    """
    gatherer, name = gathering_object(), None
    if isinstance(gatherer, DTensor):
        name = names_of_dtensors.get(gatherer)
    elif (first := first_name_of(gatherer)) is not None:
        name = f"fsdp1:{clean_name(first)}"
    elif gatherer is not None and (found := units_of_groups.get(gatherer)) is not None:
        name = found.full_name
    return (number_of(gatherer), name) if name is not None else (0, "")
