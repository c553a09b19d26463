"""The ways of calling: point to point, coalesced, functional, of objects, asynchronous; errors and counters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import isthmus
from python.backend.collective_data import ENVIRONMENTS, WORLD_SIZE, data, rank_and_size, run_beside_gloo, same
from support.checks import Table, World

pytestmark = pytest.mark.processes
table = Table()

Call = Callable[[dist.ProcessGroup, torch.Tensor, torch.Tensor], Any]
Spread = Callable[[torch.Tensor], torch.Tensor]
SPREADS: dict[str, Spread] = {
    "contiguous": lambda tensor: tensor,
    "with gaps": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],
}


@table
def send_and_receive(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    received = torch.empty(8)
    if rank % 2 == 0:
        dist.send(data(8), (rank + 1) % size, tag=3)
        dist.recv(received, (rank - 1) % size, tag=4)
    else:
        dist.recv(received, (rank - 1) % size, tag=3)
        dist.send(data(8), (rank + 1) % size, tag=4)
    same(received, torch.randn(8, generator=torch.Generator().manual_seed((rank - 1) % size)))


@table
def receive_from_anyone(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    if rank == 0:
        received = torch.empty(1)
        sources = {dist.recv(received) for _ in range(size - 1)}
        assert sources == set(range(1, size))
    else:
        dist.send(torch.ones(1), 0)
    dist.barrier()


@table
def batched_send_and_receive(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    received = torch.zeros(100_000)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
            dist.P2POp(dist.isend, torch.full((100_000,), float(rank)), (rank + 1) % size),
        ]
    )
    for work in works:
        work.wait()
    same(received, torch.full((100_000,), float((rank - 1) % size)))


@table
def coalescing_manager(gloo: dist.ProcessGroup) -> None:
    for device in (None, torch.device("cpu")):
        results = []
        for group in (dist.group.WORLD, gloo):
            tensors = [data(5, salt=salt) for salt in range(3)]
            outputs = [torch.empty(WORLD_SIZE * 5) for _ in range(3)]
            shards = [torch.empty(2) for _ in range(3)]
            given = device if group is not gloo else None  # Gloo has no startCoalescing
            with dist._coalescing_manager(group, given):
                for tensor in tensors:
                    dist.all_reduce(tensor, group=group)
            with dist._coalescing_manager(group, given, async_ops=True) as manager:
                for output, tensor in zip(outputs, tensors, strict=True):
                    dist.all_gather_into_tensor(output, tensor, group=group)
            manager.wait()
            with dist._coalescing_manager(group, given, async_ops=True) as manager:
                for shard in shards:
                    dist.reduce_scatter_tensor(shard, data(WORLD_SIZE * 2), group=group)
            manager.wait()
            results.append(tensors + outputs + shards)
        same(*results)


@table
def functional_collectives(gloo: dist.ProcessGroup) -> None:
    results = []
    for group in (dist.group.WORLD, gloo):
        outputs = [
            funcol.all_reduce(data(10), "sum", group),
            funcol.all_gather_tensor(data(10), 0, group),
            funcol.reduce_scatter_tensor(data(WORLD_SIZE * 10), "sum", 0, group),
            funcol.all_to_all_single(data(WORLD_SIZE * 10), None, None, group),
            funcol.broadcast(data(10), 1, group),
        ]
        results.append([funcol.wait_tensor(output) for output in outputs])
    same(*results)


@table
def object_collectives(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": peer} for peer in range(size)]
    news = [f"from {rank}"]
    dist.broadcast_object_list(news, src=3)
    assert news == ["from 3"]
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [f"to {peer}" for peer in range(size)] if rank == 0 else None, src=0)
    assert scattered == [f"to {rank}"]


@table
def barrier(gloo: dist.ProcessGroup) -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait(timedelta(seconds=10))


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


IN_INFERENCE_MODE: dict[str, Call] = {
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


# With gaps, by Gloo: the others would then go on with another call.
REFUSED_BY_ONE_RANK = {"reduce", "premultiplied reduce", "gather", "scatter"}


@table
def inference_mode_changes_nothing(gloo: dist.ProcessGroup) -> None:
    for name, call in IN_INFERENCE_MODE.items():
        for kind, spread in SPREADS.items():
            if kind == "with gaps" and name in REFUSED_BY_ONE_RANK:
                continue
            for group in (dist.group.WORLD, gloo):
                plain = outcome(call, group, spread, in_mode=False, made_in_mode=False)
                for made_in_mode in (False, True):
                    found = outcome(call, group, spread, in_mode=True, made_in_mode=made_in_mode)
                    assert type(found) is type(plain), (name, kind, group, found)
                    assert found == plain if isinstance(plain, str) else all(map(torch.equal, found, plain)), name


@table
def asynchronous_works(gloo: dist.ProcessGroup) -> None:
    """An all-gather takes the worker thread here, an all-reduce goes to Gloo."""
    expected = torch.empty(WORLD_SIZE * 1000)
    dist.all_gather_into_tensor(expected, data(1000), group=gloo)
    outputs = [torch.empty(WORLD_SIZE * 1000) for _ in range(5)]
    works = [dist.all_gather_into_tensor(output, data(1000), async_op=True) for output in outputs]
    for work, output in zip(works, outputs, strict=True):
        assert work.wait(timedelta(seconds=30))
        assert work.is_completed()
        assert work.is_success()
        same(work.result(), [expected])
        same(output, expected)


@table
def futures(gloo: dist.ProcessGroup) -> None:
    output = torch.empty(WORLD_SIZE * 1000)
    work = dist.all_gather_into_tensor(output, data(1000), async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    value = doubled.wait()
    same(value, output * 2)
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
def a_type_that_gloo_refuses_leaves_the_group_usable(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    for group in (None, gloo):
        tensor = torch.ones(4, dtype=torch.complex64)
        outputs = [torch.empty_like(tensor) for _ in range(size)] if rank == 0 else None
        with pytest.raises(RuntimeError, match="scalar type"):
            dist.gather(tensor, outputs, dst=0, group=group)
    sums = torch.ones(3)
    dist.all_reduce(sums)
    same(sums, torch.full((3,), float(size)))


@table
def all_gather_into_a_stack_at_any_size(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    for elements in (1, 7, 100_000):
        stack = torch.empty(size, elements)
        dist.all_gather_into_tensor(stack, torch.full((elements,), float(rank)))
        same(stack, torch.arange(size, dtype=torch.float32).repeat_interleave(elements).view(size, elements))


@table
def tensors_that_require_gradients(gloo: dist.ProcessGroup) -> None:
    leaf = torch.ones(10, 2, requires_grad=True)
    output = torch.empty(WORLD_SIZE * 10, 2)
    dist.all_gather_into_tensor(output[:, 0], leaf[:, 0])
    assert output[:, 0].sum() == WORLD_SIZE * 10
    assert not output.requires_grad
    dist.all_reduce(leaf, dist._make_nccl_premul_sum(0.5))
    same(leaf.detach(), torch.full((10, 2), WORLD_SIZE / 2))


@table
def calls_are_counted(gloo: dist.ProcessGroup) -> None:
    isthmus.reset_stats()
    assert isthmus.stats()["calls"] == {}
    dist.broadcast(torch.ones(1), 0)
    dist.all_reduce(torch.ones(1))
    stats = isthmus.stats()
    assert stats["calls"] == {"broadcast": 1, "allreduce": 1}
    assert stats["exact_calls"] == {"not recognised as a gradient": 1}


@table
def stats_of_another_backend_is_an_error(gloo: dist.ProcessGroup) -> None:
    with pytest.raises(ValueError, match="gloo"):
        isthmus.stats(gloo)


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_beside_gloo(table)


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def world(request: pytest.FixtureRequest) -> World:
    return World(main, WORLD_SIZE, env=ENVIRONMENTS[request.param])


@pytest.mark.parametrize("name", table.names)
def test_collective(world: World, name: str) -> None:
    world.check(name)
