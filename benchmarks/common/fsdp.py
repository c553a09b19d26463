"""Shared by trainings of the model: FSDP2, DDP and the optimizers."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from isthmus.benchmarks.common.model import ByteGpt

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def shard(model: ByteGpt, mesh: DeviceMesh, dtype: str, kept_on: int = 0) -> None:
    """Put `model` under FSDP2, each block a unit. dtype: of compute and reduction, one of `shape.DTYPES`.

    kept_on: ranks that keep a unit's parameters between them from its forward to its backward pass; 0: all.
    """
    policy = MixedPrecisionPolicy(param_dtype=_DTYPES[dtype], reduce_dtype=_DTYPES[dtype])
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=kept_on or None)


def replicate(model: ByteGpt, group: dist.ProcessGroup, hook: Callable[..., Any] | None) -> DistributedDataParallel:
    """Put `model` under DDP. hook: torch's, which reduces; None: somebody else's will."""
    replicated = DistributedDataParallel(model, process_group=group)
    if hook is not None:
        replicated.register_comm_hook(group, hook)
    return replicated


def make_adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """AdamW with the usual settings for GPTs."""
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


class _Float32(TorchFunctionMode):
    """Keeps float32 what would become bfloat16: processors without bfloat16 multiply it 50 times slower."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") is torch.bfloat16:
            kwargs = kwargs | {"dtype": torch.float32}
        return function(*args, **kwargs)


class Muon:
    """Muon for the matrices of the blocks of a model under FSDP2, or whole on each rank, AdamW for everything else.

    Every rank computes the whole of each matrix's step. Muon's steps are as large as AdamW's would be at the same
    learning rate; they are orthogonalised in float32.
    """

    def __init__(self, model: ByteGpt, lr: float, adamw_lr: float) -> None:
        self._shards = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
        self._matrices = [nn.Parameter(torch.empty(shard.shape, device=shard.device)) for shard in self._shards]
        hidden = set(map(id, self._shards))
        self._muon = torch.optim.Muon(self._matrices, lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        self._adamw = make_adamw([each for each in model.parameters() if id(each) not in hidden], adamw_lr)
        self.param_groups = self._muon.param_groups + self._adamw.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Take a step. Collective over the ranks of the model."""
        for shard, matrix in zip(self._shards, self._matrices, strict=True):
            assert shard.grad is not None
            matrix.copy_(whole(shard))
            matrix.grad = whole(shard.grad)
        with _Float32():
            self._muon.step()  # type: ignore[no-untyped-call]
        for shard, matrix in zip(self._shards, self._matrices, strict=True):
            if isinstance(shard, DTensor):
                shard.copy_(distribute_tensor(matrix, shard.device_mesh, shard.placements, src_data_rank=None))
            else:
                shard.copy_(matrix)
        self._adamw.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for shard in self._shards:
            shard.grad = None
        self._adamw.zero_grad()


def whole(tensor: Tensor) -> Tensor:
    """The tensor with all its elements. Collective over its mesh, if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def set_lr_share(optimizer: torch.optim.Optimizer | Muon, share: float) -> None:
    """Set the learning rate of the next step, as a share of the one that the optimizer was made with."""
    for group in optimizer.param_groups:
        group["lr"] = share * group.setdefault("initial_lr", group["lr"])
