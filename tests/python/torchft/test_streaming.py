"""Streaming DiLoCo: a fragment's pseudo-gradients cross while the next local steps run."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import torch
import torchft
from torch import nn
from torch.distributed import ReduceOp
from torchft.local_sgd import DiLoCo

from isthmus.torchft import ProcessGroupIsthmus
from isthmus.torchft.gradients import gradient_of
from python.torchft.members import at_once, members

NUM_MEMBERS, SYNC_EVERY, NUM_ROUNDS = 2, 6, 6
OPTIONS = {"bits": 8, "error_feedback": "on"}


def test_fragments_that_are_sent_while_training_goes_on() -> None:
    exact, compressed = train({"codec": "none"}), train(OPTIONS)
    assert all(torch.equal(one, compressed[0]) for one in compressed), "all members have equal bits"
    torch.manual_seed(0)
    moved = (exact[0] - flat(model())).norm()
    assert 0 < (exact[0] - compressed[0]).norm() < 0.02 * moved


def train(options: dict[str, Any]) -> list[torch.Tensor]:
    """Train with two fragments, each sent a step before it is needed; return what the members agreed on at last."""
    with members() as world:
        groups = [world.make(**options) for _ in range(NUM_MEMBERS)]
        world.meet(groups)
        torch.manual_seed(0)
        models = [model() for _ in groups]
        models[1].load_state_dict(models[0].state_dict())
        agreed = at_once(NUM_MEMBERS, lambda rank: train_one(rank, groups[rank], models[rank]))
        names = {unit["name"] for unit in groups[0].stats()["units"]}
        assert names == {f"fragment {layer}.{name}" for layer in (0, 1) for name in ("weight", "bias")}
        assert groups[0].stats()["torchft"]["committed_steps"] == NUM_ROUNDS
        return agreed


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 8))


def flat(trained: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])


def train_one(rank: int, group: ProcessGroupIsthmus, trained: nn.Sequential) -> torch.Tensor:
    inner = torch.optim.SGD(trained.parameters(), lr=0.01)
    outer = [torch.optim.SGD(layer.parameters(), lr=0.7, momentum=0.5, nesterov=True) for layer in trained]
    diloco = DiLoCo(manager(group), list(trained), inner, outer, SYNC_EVERY, fragment_sync_delay=1)
    data = torch.randn(16, 64, generator=torch.Generator().manual_seed(rank))
    with diloco:
        for _ in range(NUM_ROUNDS * SYNC_EVERY // len(trained)):
            inner.zero_grad()
            (trained(data) - data[:, :8].sin()).square().mean().backward()
            inner.step()
    return torch.cat([tensor.flatten() for each in diloco._fragments for tensor in each.original_parameters.values()])


class Mean:
    """What `torchft.Manager.allreduce` returns."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self.work, self.tensor = work, tensor

    def wait(self) -> bool:
        self.work.wait()
        self.tensor /= NUM_MEMBERS
        return True


def manager(group: ProcessGroupIsthmus) -> Any:
    """Stands in for a manager whose members stay."""
    made, step = MagicMock(spec=torchft.Manager), 0

    def allreduce(tensor: torch.Tensor, should_quantize: bool = False) -> Mean:
        with group.reducing(gradient_of(tensor, sys._getframe(1), should_quantize), lambda: step):
            return Mean(group.allreduce([tensor], ReduceOp.SUM), tensor)

    def should_commit() -> bool:
        nonlocal step
        assert group.errored() is None
        step += 1
        group.end_step(True, step)
        return True

    made.allreduce, made.should_commit, made.current_step = allreduce, should_commit, lambda: step
    made._use_async_quorum = False
    return made
