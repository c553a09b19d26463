"""Finds FSDP on the stack of a call: whose gradients it reduces, and whose weights it gathers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from isthmus.torch_private.models import ParamGroup

# --- Which unit FSDP itself reduces, or gathers, and no hook of a user's does; where a first forward pass begins ---
# Instead: a thread-local "current collective" (kind, module's path, parameters, their sizes in a row), and a global
# hook of `fully_shard`


def reduction_of(output: torch.Tensor, input: torch.Tensor) -> tuple[ParamGroup, Any] | None:
    """Return what FSDP reduces with this thread's call on these tensors; None if FSDP does not make it.

    For FSDP2: its object, and the indexes of the parameters with gradients, as in `trainable_indexes`. For FSDP1: its
    state and the handle of the flat parameter.
    """
    by_torch = True  # no code of a user's is between FSDP and the collective
    for frame in _frames(sys._getframe(1)):
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if function == "foreach_reduce" and module == _FSDP2_REDUCES:
            reduces = _reduces(frame.f_locals, "reduce_scatter_input", "reduce_output", output, input, by_torch)
            return _param_group_above(frame) if reduces else None
        if function == "_reduce_grad" and module == _FSDP1_REDUCES:
            values = frame.f_locals
            reduces = _reduces(values, "padded_unsharded_grad", "new_sharded_grad", output, input, by_torch)
            return (values["state"], values["handle"]) if reduces else None
        if function == "_reduce_grad_no_shard" and module == _FSDP1_REDUCES:
            values = frame.f_locals
            flat = values["handle"].flat_param
            reduces = _is_same(input, flat.grad) and _is_same(output, flat.grad)
            return (values["state"], values["handle"]) if reduces else None
        by_torch = by_torch and (module in _COLLECTIVES or str(module).startswith("isthmus."))
    return None


def why_not_reduction_of(output: torch.Tensor) -> str:
    """Return why FSDP does not make this thread's call on these tensors itself, as far as that is known: "" if not.

    "complex": the output is FSDP's, but torch passes complex numbers on as pairs. "custom": FSDP2 waits for a
    reduce-scatter of the program's own, which reduces other tensors.
    """
    for frame in _frames(sys._getframe(1)):
        function, values = frame.f_code.co_name, frame.f_locals
        shard = _SHARDS.get((str(frame.f_globals.get("__name__")), function))
        if shard is None:
            continue
        tensor = values.get(shard)
        if tensor is not None and tensor.is_complex() and tensor.data_ptr() == output.data_ptr():
            return "complex"
        # It is set when the reduce-scatter is over: what comes later is the all-reduce, and hooks.
        return "custom" if function == "foreach_reduce" and "reduce_scatter_event" not in values else ""
    return ""


def hooked_reduction_of(tensor: torch.Tensor) -> tuple[ParamGroup, tuple[int, ...]] | None:
    """Return FSDP2's object whose gradient a hook all-reduces, or FSDP2 itself; None if it is something else.

    The hook (`set_all_reduce_hook`) gets the shard that FSDP2 has reduced. As in `reduction_of`, with indexes.
    """
    for frame in _frames(sys._getframe(1)):
        if frame.f_code.co_name == "foreach_reduce" and frame.f_globals.get("__name__") == _FSDP2_REDUCES:
            return _param_group_above(frame) if _is_same(tensor, frame.f_locals.get("reduce_output")) else None
    return None


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


# Modules of torch that begin passes, that reduce gradients, and that they call for a collective.
_FSDP2_PASSES = "torch.distributed.fsdp._fully_shard._fsdp_state"
_FSDP2_REDUCES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_FSDP1_REDUCES = "torch.distributed.fsdp._runtime_utils"
# The functions that reduce, and what they call the result.
_SHARDS = {
    (_FSDP2_REDUCES, "foreach_reduce"): "reduce_output",
    (_FSDP1_REDUCES, "_reduce_grad"): "new_sharded_grad",
}
_COLLECTIVES = {_FSDP2_REDUCES, "torch.distributed.distributed_c10d", "torch.distributed.c10d_logger"}


def _reduces(
    values: Mapping[str, Any], whole: str, shard: str, output: torch.Tensor, input: torch.Tensor, by_torch: bool
) -> bool:
    """Return whether the call reduce-scatters FSDP's variables of these names, or all-reduces the shard.

    Users' hooks see gradients in the memory that FSDP all-reduced, so FSDP itself must make an all-reduce.
    """
    if not _is_same(output, values.get(shard)):
        return False
    return _is_same(input, values.get(whole)) or (by_torch and _is_same(input, values.get(shard)))


def _is_same(tensor: torch.Tensor, expected: torch.Tensor | None) -> bool:
    return tensor is expected or (
        expected is not None
        and tensor.data_ptr() == expected.data_ptr()
        and (tensor.numel(), tensor.dtype) == (expected.numel(), expected.dtype)
    )


def _param_group_above(reduces: FrameType) -> tuple[ParamGroup, tuple[int, ...]] | None:
    for frame in _frames(reduces):
        params, group = frame.f_locals.get("fsdp_params_with_grad"), frame.f_locals.get("self")
        if params is not None and group is not None:
            places = {id(param): index for index, param in enumerate(group.fsdp_params)}
            return group, tuple(places[id(param)] for param in params)
    return None


def beginning_pass() -> Any | None:
    """Return the module of FSDP2 whose forward pass begins on this thread's stack, None if there is none."""
    for frame in _frames(sys._getframe(1)):
        if frame.f_code.co_name == "_root_pre_forward" and frame.f_globals.get("__name__") == _FSDP2_PASSES:
            return frame.f_locals["self"]._modules[0]
    return None


def gathering_object() -> Any | None:
    """Return the object that is gathering its parameters on this thread's stack, None if there is none.

    It is FSDP2's object of a unit, FSDP1's handle of a flat parameter, or the DTensor that SimpleFSDP makes whole. The
    flat parameter itself would outlive its model: it keeps views of itself, whose gradients lead back to it.
    """
    for frame in _frames(sys._getframe(1)):
        file = _GATHERERS.get(frame.f_code.co_name)
        if file is not None and frame.f_code.co_filename.endswith(file):
            return frame.f_locals.get("self")
    return None


# Torch's methods that gather parameters, and how the names of their files end.
_GATHERERS = {
    "unshard": "fsdp/_fully_shard/_fsdp_param_group.py",
    "_all_gather_flat_param": "fsdp/_flat_param.py",
    "redistribute": "distributed/tensor/_api.py",
}
