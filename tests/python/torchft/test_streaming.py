"""Streaming DiLoCo: a fragment's pseudo-gradients cross while the next local steps run."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torchft
from torch import nn
from torch.distributed import ReduceOp
from torchft.local_sgd import DiLoCo

from isthmus.torchft import ProcessGroupIsthmus
from isthmus.torchft.manager import gradient_of
from python.torchft.members import at_once, members

SYNC_EVERY, NUM_ROUNDS = 6, 6  # of two fragments


@pytest.mark.parametrize(("options", "share"), [({}, 0.1), ({"bits": 8, "error_feedback": "on"}, 0.02)])
def test_fragments_that_are_sent_while_training_goes_on(options: dict[str, Any], share: float) -> None:
    exact, compressed = train({"codec": "none"}), train(options)
    assert all(torch.equal(one, compressed[0]) for one in compressed), "all members have equal bits"
    moved = torch.cat([parameter.detach().flatten() for parameter in model().parameters()]) - exact[0]
    assert 0 < (exact[0] - compressed[0]).norm() < share * moved.norm()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 8))


def train(options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the weights that each of two members has at last."""
    with members() as world:
        groups, models = [world.make(**options) for _ in range(2)], [model() for _ in range(2)]
        world.meet(groups)
        agreed = at_once(2, lambda rank: train_one(rank, groups[rank], models[rank]))
        stats = groups[0].stats()
        names = {f"fragment {layer}.{name}" for layer in (0, 1) for name in ("weight", "bias")}
        assert {unit["name"] for unit in stats["units"]} == names
        assert stats["torchft"]["committed_steps"] == NUM_ROUNDS
        return agreed


def train_one(rank: int, group: ProcessGroupIsthmus, trained: nn.Sequential) -> torch.Tensor:
    inner = torch.optim.SGD(trained.parameters(), lr=0.01)
    outer = [torch.optim.SGD(layer.parameters(), lr=0.35, momentum=0.5, nesterov=True) for layer in trained]
    data = torch.randn(16, 64, generator=torch.Generator().manual_seed(rank))
    with DiLoCo(manager(group), list(trained), inner, outer, SYNC_EVERY, fragment_sync_delay=1) as diloco:
        for _ in range(NUM_ROUNDS * SYNC_EVERY // len(trained)):
            inner.zero_grad()
            (trained(data) - data[:, :8].sin()).square().mean().backward()
            inner.step()
    return torch.cat([tensor.flatten() for each in diloco._fragments for tensor in each.original_parameters.values()])


def manager(group: ProcessGroupIsthmus) -> Any:
    """Stands in for a manager whose members stay; it sums, so that the outer learning rate is half as large."""
    made, step = MagicMock(spec=torchft.Manager), 0

    def allreduce(tensor: torch.Tensor, should_quantize: bool = False) -> Any:
        with group.reducing(gradient_of(tensor, sys._getframe(1), should_quantize), lambda: step):
            return group.allreduce([tensor], ReduceOp.SUM)

    def should_commit() -> bool:
        nonlocal step
        assert group.errored() is None
        step += 1
        group.end_step(True, step)
        return True

    made.allreduce, made.should_commit, made.current_step = allreduce, should_commit, lambda: step
    made._use_async_quorum = False
    return made
