"""A training whose every committed step can be made again: what members of a job under torchft, and its replay, run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torchft
from torch import nn
from torchft.work import _DummyWork

from isthmus.torchft import ProcessGroupIsthmus
from isthmus.torchft.manager import for_ddp, gradient_of
from support.limits import scaled

OPTIONS = {"bits": 4, "error_feedback": "on", "min_elements": 0}
TIMEOUT = timedelta(seconds=scaled(3))


@dataclass(frozen=True)
class Committed:
    step: int
    quorum_id: int
    rank: int
    ranks: Sequence[int]  # the members' numbers, by their ranks
    takes_part: bool  # False: it healed meanwhile, and contributed zeros
    num_participants: int
    loss: float  # before the step
    weights: str  # after it


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 257), nn.Tanh(), nn.Linear(257, 129), nn.Tanh(), nn.Linear(129, 8))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)  # its state is the weights


def loss_of(model: nn.Module, member: int, step: int) -> torch.Tensor:
    data = torch.randn(16, 64, generator=torch.Generator().manual_seed(1000 * member + step))
    return (model(data) - data[:, :8].sin()).square().mean()


def digest(model: nn.Module) -> str:
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


class Replayed:
    """Stands in for the manager: one committed step after the other, as recorded."""

    def __init__(self, group: ProcessGroupIsthmus) -> None:
        self.group = group
        self.now: Committed | None = None

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Any:
        now = self.now
        assert now is not None
        if not now.takes_part:
            tensor.zero_()
        with self.group.reducing(gradient_of(tensor, sys._getframe(1), should_quantize), lambda: now.step):
            self.group.allreduce([tensor], torch.distributed.ReduceOp.SUM).wait()
        tensor /= now.num_participants
        return for_ddp(_DummyWork(tensor))


def parallel(manager: Any, model: nn.Module) -> nn.Module:
    made: nn.Module = torchft.DistributedDataParallel(manager, model)
    return made
