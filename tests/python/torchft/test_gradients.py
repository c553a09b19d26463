"""Which reductions of torchft are gradients, by real objects of torchft over made-up managers."""

import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
import torchft
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.fsdp import fully_shard
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.work import _DummyWork

from isthmus.torchft import Manager, ProcessGroupIsthmus
from isthmus.torchft.manager import gradient_of
from python.torchft.members import at_once, members


def recording_manager() -> tuple[Any, list[str | None]]:
    """Return a manager, and the list of names under which it was asked to reduce; None: no gradient."""
    manager, names = MagicMock(spec=torchft.Manager), []

    def allreduce(tensor: torch.Tensor, should_quantize: bool = False, reduce_op: Any = None) -> Any:
        tag = gradient_of(tensor, sys._getframe(1), should_quantize)
        names.append(tag and tag[0])
        work = _DummyWork(tensor)
        work.get_future()._fut = work.get_future()  # type: ignore[attr-defined]
        return work

    manager.allreduce = allreduce
    manager._use_async_quorum = False
    manager.should_commit.return_value = True
    manager.current_step.return_value = 0
    return manager, names


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def test_buckets_of_ddp() -> None:
    manager, names = recording_manager()
    wrapped = torchft.DistributedDataParallel(manager, model())
    wrapped(torch.ones(3, 4)).sum().backward()
    assert names == ["bucket 0"]


@pytest.mark.parametrize("in_buckets", [False, True])
def test_pseudo_gradients_of_diloco(in_buckets: bool) -> None:
    manager, names = recording_manager()
    trained = model()
    inner = torch.optim.SGD(trained.parameters(), lr=0.1)
    outer = torch.optim.SGD(trained.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(manager, [trained], inner, outer, sync_every=2, use_bucketization=in_buckets):
        for _ in range(2):
            inner.zero_grad()
            trained(torch.ones(3, 4)).sum().backward()
            inner.step()
    each = [f"fragment 0.{name}" for name, _ in trained.named_parameters()]
    assert names == (["fragment 0.bucket"] if in_buckets else each)


def test_averages_of_local_sgd_are_no_gradients() -> None:
    manager, names = recording_manager()
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    with LocalSGD(manager, trained, optimizer, sync_every=1):
        trained(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert names == [None] * 4


def test_what_asks_for_it() -> None:
    manager, names = recording_manager()
    manager.allreduce(torch.ones(3), should_quantize=True)
    manager.allreduce(torch.ones(3))
    assert names == ["quantized", None]


def test_hooks_of_fsdp2() -> None:
    """What the hook is handed is a gradient; what else it reduces is not."""
    manager, names = recording_manager()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = fully_shard(model())

        def hook(gradient: torch.Tensor) -> None:
            manager.allreduce(gradient)
            manager.allreduce(gradient.square().sum())

        sharded.set_all_reduce_hook(hook)
        sharded(torch.ones(3, 4)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert names == ["root", None]


def test_a_manager_takes_a_group_of_isthmus_alone() -> None:
    with pytest.raises(TypeError, match="expected a ProcessGroupIsthmus, got ProcessGroupGloo"):
        Manager(torchft.ProcessGroupGloo(), None, None, 1)


# --- Streaming DiLoCo: a fragment's pseudo-gradients cross while the next local steps run ---

SYNC_EVERY, NUM_ROUNDS = 6, 6  # of two fragments


@pytest.mark.parametrize(("options", "share"), [({}, 0.1), ({"bits": 8, "error_feedback": "on"}, 0.02)])
def test_fragments_that_are_sent_while_training_goes_on(options: dict[str, Any], share: float) -> None:
    exact, compressed = train({"codec": "none"}), train(options)
    assert all(torch.equal(one, compressed[0]) for one in compressed), "all members have equal bits"
    moved = torch.cat([parameter.detach().flatten() for parameter in streamed_model().parameters()]) - exact[0]
    assert 0 < (exact[0] - compressed[0]).norm() < share * moved.norm()


def streamed_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 8))


def train(options: dict[str, Any]) -> list[torch.Tensor]:
    with members() as world:
        groups, models = [world.make(**options) for _ in range(2)], [streamed_model() for _ in range(2)]
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
