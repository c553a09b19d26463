"""DiLoCo: every node trains by itself, and now and then all nodes average how far they came."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import isthmus

_OUTER_LR = 0.7
_OUTER_MOMENTUM = 0.5


class DiLoCo:
    """The outer optimizer: SGD with Nesterov momentum, over the mean of the nodes' pseudo-gradients.

    parameters: of a model that this rank trains by itself, with the same values on all ranks; under FSDP2, in a mesh of
    one rank. group: with backend `isthmus`, one rank a node; its options say how a pseudo-gradient is coded.
    local_steps: of the inner optimizer between two means.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, local_steps: int) -> None:
        self._local = [_local(parameter) for parameter in parameters]
        self._group = group
        self._local_steps = local_steps
        self._num_steps = 0
        # One unit: a packet for each of many small tensors would be mostly header.
        self._global = nn.Parameter(self._flat())
        self._outer = torch.optim.SGD([self._global], lr=_OUTER_LR, momentum=_OUTER_MOMENTUM, nesterov=True)

    @torch.no_grad()
    def after_step(self, is_last: bool) -> float:
        """Count a step of the inner optimizer. Collective over the group after every `local_steps`, and after the last.

        Returns the norm of the mean pseudo-gradient, which is the same on all ranks; 0 between means.
        """
        self._num_steps += 1
        if self._num_steps % self._local_steps and not is_last:
            return 0.0
        pseudo_gradient = self._global - self._flat()
        with isthmus.unit("pseudo-gradient"):
            dist.all_reduce(pseudo_gradient, op=dist.ReduceOp.AVG, group=self._group)
        self._global.grad = pseudo_gradient
        self._outer.step()
        parts = torch.split(self._global, [each.numel() for each in self._local])
        for local, part in zip(self._local, parts, strict=True):
            local.copy_(part.view_as(local))
        return float(pseudo_gradient.norm())

    def _flat(self) -> Tensor:
        return torch.cat([local.flatten() for local in self._local])


def _local(parameter: nn.Parameter) -> Tensor:
    """The memory of a parameter that this rank has whole."""
    return (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach()
