"""Two tiers by hand on bare Gloo, as a user would write them without Isthmus: the baseline of its overhead."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from isthmus.benchmarks.training.trainer import Trainer


@dataclass(frozen=True)
class BareTiers:
    """This rank's two Gloo groups, with ranks placed on nodes in blocks."""

    #: The ranks of this node.
    intra: dist.ProcessGroup
    #: The ranks with this one's local index, one a node.
    rail: dist.ProcessGroup

    def reduce_scatter(self, shard: Tensor, gradient: Tensor, scale: float) -> None:
        """shard = scale * this rank's part of the sum over all ranks. Sums in float32; crosses as it came."""
        of_nodes = gradient.view(self.rail.size(), self.intra.size(), -1)
        pieces = [_sum(_exchange(parts, self.intra)).to(gradient.dtype) for parts in of_nodes]
        shard.copy_(_sum(_exchange(torch.stack(pieces), self.rail)).mul_(scale))

    def all_gather(self, output: Tensor, shard: Tensor) -> None:
        """Along the rail first, then the shards of each node into their place."""
        of_rail = shard.new_empty((self.rail.size(), shard.numel()))
        dist.all_gather_into_tensor(of_rail.view(-1), shard, group=self.rail)
        for node_shard, node_output in zip(of_rail, output.view(self.rail.size(), -1), strict=True):
            dist.all_gather_into_tensor(node_output, node_shard, group=self.intra)


def _exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Part i goes to rank i of the group; returns what came, in rank order."""
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=group)
    return arrived


def _sum(parts: Tensor) -> Tensor:
    """Sum over the first dimension, in float32 and in order."""
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    return total


class _Allocates:
    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _BareReduceScatter(_Allocates, ReduceScatter):
    def __init__(self, tiers: BareTiers) -> None:
        self._tiers = tiers

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        if op != dist.ReduceOp.AVG or async_op:
            raise ValueError(f"op {op}, async_op {async_op}: expected AVG, which FSDP2 asks for here, and False")
        self._tiers.reduce_scatter(output_tensor, input_tensor, scale=1 / group.size())


class _BareAllGather(_Allocates, AllGather):
    def __init__(self, tiers: BareTiers) -> None:
        self._tiers = tiers

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        if async_op:
            raise ValueError("async_op True: expected False, which FSDP2 asks for here")
        self._tiers.all_gather(output_tensor, input_tensor)


def use_bare_tiers(trainer: Trainer, tiers: BareTiers) -> None:
    """Let every FSDP unit of `trainer` communicate by `tiers`."""
    for module in trainer.fsdp_modules:
        module.set_custom_reduce_scatter(_BareReduceScatter(tiers))
        module.set_custom_all_gather(_BareAllGather(tiers))
