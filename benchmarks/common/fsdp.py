"""Shared by trainings of the model: FSDP2 and the optimizer."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from isthmus.benchmarks.common.model import ByteGpt

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def shard(model: ByteGpt, mesh: DeviceMesh, dtype: str, kept_on: int = 0) -> None:
    """Put `model` under FSDP2, each block a unit. dtype: of compute and reduction, one of `shape.DTYPES`.

    kept_on: ranks that keep a unit's parameters between them from its forward to its backward pass; 0: all.
    """
    policy = MixedPrecisionPolicy(param_dtype=_DTYPES[dtype], reduce_dtype=_DTYPES[dtype])
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=kept_on or None)


def make_adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """AdamW with the usual settings for GPTs."""
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = lr
