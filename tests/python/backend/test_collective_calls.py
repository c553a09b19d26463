"""Calls that conformance cannot compare: in inference mode, asynchronous and refused ones."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus
from support import ranks
from support.checks import Table, finish

WORLD_SIZE = 4
table = Table()

Call = Callable[[dist.ProcessGroup, torch.Tensor, torch.Tensor], Any]
Spread = Callable[[torch.Tensor], torch.Tensor]
SPREADS: dict[str, Spread] = {
    "contiguous": lambda tensor: tensor,
    "with gaps": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],
}


def data(*shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """Different on every rank, the same at every call."""
    generator = torch.Generator().manual_seed(1000 * salt + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(0, 50, shape, generator=generator).to(dtype)


@table
def a_barrier_ends_after_earlier_calls(gloo: dist.ProcessGroup) -> None:
    """One that the worker runs, and that nobody waits for."""
    passes: list[Callable[[dist.ProcessGroup], Any]] = [
        dist.barrier,
        lambda group: dist.barrier(group, async_op=True).wait(timedelta(minutes=5)),
        lambda group: dist.barrier(group, async_op=True).get_future().wait(),
    ]
    for group in (dist.group.WORLD, gloo):
        for passed in passes:
            output = torch.full((WORLD_SIZE * 500_000,), torch.nan)
            work = dist.all_gather_into_tensor(output, torch.ones(500_000), group=group, async_op=True)
            passed(group)
            missing = int(output.isnan().sum())
            work.wait()
            assert missing == 0


def outcome(call: Call, group: dist.ProcessGroup, spread: Spread, in_mode: bool, made_in_mode: bool) -> Any:
    """What a call gives in inference mode or not, for tensors that were made in it or not; or its error."""
    with torch.inference_mode(made_in_mode):
        sent, received = spread(data(WORLD_SIZE, 6, dtype=torch.float64)), spread(torch.zeros(WORLD_SIZE, 6).double())
    with torch.inference_mode(in_mode):
        try:
            call(group, sent, received)
        except (RuntimeError, ValueError) as error:
            return str(error).splitlines()[0]
    return [sent.clone(), received.clone()]


def gradients(group: dist.ProcessGroup, sent: torch.Tensor, received: torch.Tensor) -> None:
    with isthmus.unit("inference"):
        dist.reduce_scatter_tensor(received[0:1], sent, group=group)
        dist.all_reduce(sent, group=group)


CALLS: dict[str, Call] = {
    "broadcast": lambda group, sent, received: dist.broadcast(sent, 1, group),
    "all_reduce": lambda group, sent, received: dist.all_reduce(sent, group=group),
    "premultiplied all_reduce": lambda group, sent, received: dist.all_reduce(
        sent, dist._make_nccl_premul_sum(0.5), group
    ),
    "reduce": lambda group, sent, received: dist.reduce(sent, 1, group=group),
    "premultiplied reduce": lambda group, sent, received: dist.reduce(sent, 1, dist._make_nccl_premul_sum(0.5), group),
    "all_gather": lambda group, sent, received: dist.all_gather([*received], sent[0], group=group),
    "all_gather_into_tensor": lambda group, sent, received: dist.all_gather_into_tensor(
        received, sent[0:1], group=group
    ),
    "reduce_scatter_tensor": lambda group, sent, received: dist.reduce_scatter_tensor(received[0:1], sent, group=group),
    "premultiplied reduce_scatter_tensor": lambda group, sent, received: dist.reduce_scatter_tensor(
        received[0:1], sent, dist._make_nccl_premul_sum(0.5), group
    ),
    "reduce_scatter": lambda group, sent, received: dist.reduce_scatter(received[0], [*sent], group=group),
    "gather": lambda group, sent, received: dist.gather(
        sent[0], [*received] if dist.get_rank() == 0 else None, 0, group
    ),
    "scatter": lambda group, sent, received: dist.scatter(
        received[0], [*sent] if dist.get_rank() == 0 else None, 0, group
    ),
    "all_to_all_single": lambda group, sent, received: dist.all_to_all_single(received, sent, group=group),
    "all_to_all": lambda group, sent, received: dist.all_to_all([*received], [*sent], group),
    "all_gather_coalesced": lambda group, sent, received: dist.all_gather_coalesced(
        [[row] for row in received], [sent[0]], group
    ),
    "all_reduce_coalesced": lambda group, sent, received: dist.all_reduce_coalesced([*sent], group=group),
    "gradients": gradients,
}


# With gaps, by Gloo itself: the others would then go on with another call.
REFUSED_BY_ONE_RANK = {"reduce", "premultiplied reduce", "gather", "scatter"}


@table
def inference_mode_changes_nothing(gloo: dist.ProcessGroup) -> None:
    for name, call in CALLS.items():
        for kind, spread in SPREADS.items():
            is_refused = kind == "with gaps" and name in REFUSED_BY_ONE_RANK
            for group in (dist.group.WORLD,) if is_refused else (dist.group.WORLD, gloo):
                plain = outcome(call, group, spread, in_mode=False, made_in_mode=False)
                for made_in_mode in (False, True):
                    found = outcome(call, group, spread, in_mode=True, made_in_mode=made_in_mode)
                    assert type(found) is type(plain), (name, kind, group, found)
                    assert found == plain if isinstance(plain, str) else all(map(torch.equal, found, plain)), name


@table
def works_and_futures_of_both_ways(gloo: dist.ProcessGroup) -> None:
    """An all-gather takes the worker thread here, an all-reduce goes to Gloo."""
    expected = torch.empty(WORLD_SIZE * 1000)
    dist.all_gather_into_tensor(expected, data(1000), group=gloo)
    outputs = [torch.empty(WORLD_SIZE * 1000) for _ in range(5)]
    works = [dist.all_gather_into_tensor(output, data(1000), async_op=True) for output in outputs]
    doubled = works[-1].get_future().then(lambda future: future.value()[0] * 2)
    for work, output in zip(works, outputs, strict=True):
        assert work.wait(timedelta(seconds=30)) and work.is_completed() and work.is_success()
        assert work.result()[0] is output and torch.equal(output, expected)
    assert torch.equal(doubled.wait(), expected * 2)
    summed = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda future: future.value()[0].sum())
    assert summed.wait().item() == 3 * WORLD_SIZE


@table
def tensors_live_as_long_as_the_operation(gloo: dist.ProcessGroup) -> None:
    works = []
    for _ in range(20):
        output = torch.empty(WORLD_SIZE * 10_000)
        works.append(dist.all_gather_into_tensor(output, torch.ones(10_000), async_op=True))
        del output
    for work in works:
        work.wait()
        assert work.result()[0].sum() == WORLD_SIZE * 10_000


@table
def errors_of_size_and_type_are_raised_at_once(gloo: dist.ProcessGroup) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        dist.reduce_scatter_tensor(torch.empty(3), torch.empty(WORLD_SIZE * 3 + 1))
    with (
        pytest.raises(ValueError, match="expected 12"),
        isthmus.unit("x"),
    ):
        dist.reduce_scatter_tensor(torch.empty(3), torch.empty(WORLD_SIZE * 3 + 1))
    with pytest.raises(ValueError, match="one for each rank"):
        dist.distributed_c10d._get_default_group().alltoall([torch.empty(1)], [torch.empty(1)]).wait()
    dist.barrier()


@table
def numbers_do_not_depend_on_strides(gloo: dist.ProcessGroup) -> None:
    """Those of one rank's tensor differ from the others'."""
    order = (lambda tensor: tensor.t()) if dist.get_rank() == 1 else (lambda tensor: tensor)
    shape = (3, 2) if dist.get_rank() == 1 else (2, 3)
    expected = torch.arange(6.0).view(2, 3)
    tensor = order(torch.zeros(shape))
    dist.broadcast(tensor.copy_(expected) if dist.get_rank() == 1 else tensor, 1)
    assert torch.equal(tensor, expected)
    tensor = order(torch.zeros(shape))
    dist.scatter(tensor, [expected + rank for rank in range(WORLD_SIZE)] if dist.get_rank() == 1 else None, 1)
    assert torch.equal(tensor, expected + dist.get_rank())
    tensor = order(torch.zeros(shape))
    dist.reduce_scatter(tensor, [expected + rank for rank in range(WORLD_SIZE)])
    assert torch.equal(tensor, WORLD_SIZE * (expected + dist.get_rank()))


@table
def elements_that_share_memory_are_read_and_not_written(gloo: dist.ProcessGroup) -> None:
    shared = torch.ones(1).expand(4)
    for call in (dist.all_reduce, lambda tensor: dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))):
        with pytest.raises(ValueError, match=r"allreduce into .* sizes \[4\] and strides \[0\]: its elements share"):
            call(shared)
    tensor = shared if dist.get_rank() == 1 else torch.zeros(4)
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, torch.ones(4))
    sums = torch.zeros(1)
    dist.reduce_scatter_tensor(sums, shared)
    assert sums.item() == WORLD_SIZE


@table
def a_list_of_other_sizes_at_the_root_is_refused_on_every_rank(gloo: dist.ProcessGroup) -> None:
    is_root = dist.get_rank() == 2
    lists = [torch.zeros(4)] * 3 + [torch.zeros(3)]
    for call in (
        lambda group: dist.gather(torch.zeros(4), lists if is_root else None, 2, group),
        lambda group: dist.scatter(torch.zeros(4), lists if is_root else None, 2, group),
    ):
        group = dist.new_group()
        with pytest.raises(dist.DistBackendError, match=r"rank 2.*sizes \[3\] of Float, and its own has sizes \[4\]"):
            call(group)
    dist.barrier()


@table
def tensors_that_require_gradients(gloo: dist.ProcessGroup) -> None:
    leaf = torch.ones(10, 2, requires_grad=True)
    output = torch.empty(WORLD_SIZE * 10, 2)
    dist.all_gather_into_tensor(output[:, 0], leaf[:, 0])
    assert output[:, 0].sum() == WORLD_SIZE * 10
    assert not output.requires_grad
    dist.all_reduce(leaf, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(leaf.detach(), torch.full((10, 2), WORLD_SIZE / 2))


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init()
    failures = table.run_on_this_rank(dist.new_group(backend="gloo"))
    finish()
    return failures


test_collective = table.in_world(main, env={"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"})
