"""Finds which reductions of torchft are gradients, by who makes them: torchft hands over a tensor and nothing else."""

from __future__ import annotations

from types import FrameType

import torch
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import _StreamingDiLoCoFragment

from isthmus.units.identify import Tag, fsdp_hook_caller

# Torchft's functions that reduce gradients. A version that renames them fails here, and not by being exact.
_DDP_BUCKET = DistributedDataParallel._comm_hook.__code__
_DILOCO_PARAMETER = _StreamingDiLoCoFragment._allreduce_per_param.__code__
_DILOCO_BUCKET = _StreamingDiLoCoFragment._bucketize_and_allreduce.__code__


def gradient_of(tensor: torch.Tensor, caller: FrameType | None, should_quantize: bool) -> Tag | None:
    """Return the unit whose gradient `caller` reduces, None if it reduces something else.

    caller: the frame that calls `Manager.allreduce`. should_quantize: the caller asks for a lossy sum.
    """
    name = _name(caller) if caller is not None else ""
    if name:
        return name, 0, None, 0, None
    if tag := fsdp_hook_caller(tensor):
        return tag
    return ("quantized", 0, None, 0, None) if should_quantize else None


def _name(caller: FrameType) -> str:
    values = caller.f_locals
    if caller.f_code is _DDP_BUCKET:
        return f"bucket {values['bucket'].index()}"
    if caller.f_code is _DILOCO_PARAMETER:
        return f"fragment {values['self']._fragment_id}.{values['name']}"
    if caller.f_code is _DILOCO_BUCKET:
        return f"fragment {values['self']._fragment_id}.bucket"
    return ""
