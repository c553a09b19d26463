"""Every collective that goes to the world backend gives the bits that Gloo gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from python.backend.collective_data import DTYPES, ENVIRONMENTS, WORLD_SIZE, data, rank_and_size, run_beside_gloo, same
from support.checks import Table, World

pytestmark = pytest.mark.processes
table = Table()


@table
def broadcast(gloo: dist.ProcessGroup) -> None:
    for dtype in DTYPES:
        for source in range(WORLD_SIZE):
            results = []
            for group in (None, gloo):
                tensor = data(7, dtype=dtype)
                dist.broadcast(tensor, source, group=group)
                results.append(tensor)
            same(*results)


@table
def all_reduce(gloo: dist.ProcessGroup) -> None:
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
    for dtype in DTYPES:
        for op in ops + [dist.ReduceOp.AVG] * dtype.is_floating_point:
            results = []
            for group in (None, gloo):
                tensor = data(33, dtype=dtype)
                dist.all_reduce(tensor, op, group=group)
                results.append(tensor)
            same(*results)


@table
def all_reduce_premul_sum(gloo: dist.ProcessGroup) -> None:
    for factor in (0.25, torch.tensor([0.25])):
        expected = data(33) * 0.25
        dist.all_reduce(expected, group=gloo)
        tensor = data(33)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        same(tensor, expected)


@table
def reduce(gloo: dist.ProcessGroup) -> None:
    for root in range(WORLD_SIZE):
        results = []
        for group in (None, gloo):
            tensor = data(9)
            dist.reduce(tensor, root, group=group)
            results.append(tensor)
        if dist.get_rank() == root:
            same(*results)


@table
def reduce_premul_sum(gloo: dist.ProcessGroup) -> None:
    tensor = data(9)
    dist.reduce(tensor, 1, dist._make_nccl_premul_sum(0.5))
    expected = data(9) * 0.5
    dist.reduce(expected, 1, group=gloo)
    same(tensor, expected if dist.get_rank() == 1 else data(9))


@table
def all_gather_of_lists(gloo: dist.ProcessGroup) -> None:
    for dtype in DTYPES:
        results = []
        for group in (None, gloo):
            outputs = [torch.empty(5, dtype=dtype) for _ in range(WORLD_SIZE)]
            dist.all_gather(outputs, data(5, dtype=dtype), group=group)
            results.append(outputs)
        same(*results)


@table
def all_gather_into_tensor(gloo: dist.ProcessGroup) -> None:
    for dtype in [*DTYPES, torch.complex64, torch.bool]:
        for numel in (1, 3, 1000):
            results = []
            for group in (None, gloo):
                output = torch.empty(WORLD_SIZE * numel, dtype=dtype)
                dist.all_gather_into_tensor(output, data(numel).to(dtype), group=group)
                results.append(output)
            same(*results)


@table
def all_gather_into_tensor_from_its_own_part(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    results = []
    for group in (None, gloo):
        output = torch.zeros(size * 50)
        own = output.narrow(0, rank * 50, 50)
        own.copy_(data(50))
        dist.all_gather_into_tensor(output, own, group=group)
        results.append(output)
    same(*results)


@table
def all_gather_of_tensors_that_are_not_contiguous(gloo: dist.ProcessGroup) -> None:
    source = data(20, 2)
    expected = torch.empty(WORLD_SIZE * 20)
    dist.all_gather_into_tensor(expected, source[:, 0].contiguous(), group=gloo)
    storage = torch.zeros(WORLD_SIZE * 20, 2)
    dist.all_gather_into_tensor(storage[:, 1], source[:, 0])
    same(storage[:, 1].contiguous(), expected)
    assert torch.count_nonzero(storage[:, 0]) == 0


@table
def all_gather_of_nothing(gloo: dist.ProcessGroup) -> None:
    output = torch.empty(0)
    dist.all_gather_into_tensor(output, torch.empty(0))


@table
def reduce_scatter_tensor_without_a_label(gloo: dist.ProcessGroup) -> None:
    for dtype in DTYPES:
        for op in [dist.ReduceOp.SUM] + [dist.ReduceOp.AVG] * dtype.is_floating_point:
            results = []
            for group in (None, gloo):
                output = torch.empty(100, dtype=dtype)
                dist.reduce_scatter_tensor(output, data(WORLD_SIZE * 100, dtype=dtype), op, group=group)
                results.append(output)
            same(*results)


@table
def reduce_scatter_tensor_premul_sum(gloo: dist.ProcessGroup) -> None:
    output, expected = torch.empty(10), torch.empty(10)
    source = data(WORLD_SIZE * 10)
    dist.reduce_scatter_tensor(output, source, dist._make_nccl_premul_sum(0.125))
    same(source, data(WORLD_SIZE * 10))
    dist.reduce_scatter_tensor(expected, source * 0.125, group=gloo)
    same(output, expected)


@table
def reduce_scatter_of_lists(gloo: dist.ProcessGroup) -> None:
    results = []
    for group in (None, gloo):
        output = torch.empty(6)
        dist.reduce_scatter(output, [data(6, salt=peer) for peer in range(WORLD_SIZE)], group=group)
        results.append(output)
    same(*results)


@table
def gather(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    results = []
    for group in (None, gloo):
        outputs = [torch.empty(4) for _ in range(size)] if rank == 2 else None
        dist.gather(data(4), outputs, dst=2, group=group)
        results.append(outputs or [])
    same(*results)


@table
def scatter(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    results = []
    for group in (None, gloo):
        output = torch.empty(4)
        dist.scatter(output, [data(4, salt=peer) for peer in range(size)] if rank == 1 else None, src=1, group=group)
        results.append(output)
    same(*results)


@table
def all_to_all_single(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    results = []
    for group in (None, gloo):
        output = torch.empty(size * 3)
        dist.all_to_all_single(output, data(size * 3), group=group)
        # Rank r sends r + p elements to rank p.
        uneven = torch.empty(sum(peer + rank for peer in range(size)))
        splits = [peer + rank for peer in range(size)]
        dist.all_to_all_single(uneven, data(sum(splits)), splits, splits, group=group)
        results.append([output, uneven])
    same(*results)


@table
def all_to_all_of_lists(gloo: dist.ProcessGroup) -> None:
    rank, size = rank_and_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        inputs = [torch.full((2, peer + 1), 10 * rank + peer, dtype=dtype) for peer in range(size)]
        outputs = [torch.zeros(2, rank + 1, dtype=dtype) for _ in range(size)]
        outputs[0] = torch.zeros(rank + 1, 2, dtype=dtype).t()  # not contiguous
        dist.all_to_all(outputs, inputs)
        same(outputs, [torch.full((2, rank + 1), 10 * peer + rank, dtype=dtype) for peer in range(size)])


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_beside_gloo(table)


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def world(request: pytest.FixtureRequest) -> World:
    return World(main, WORLD_SIZE, env=ENVIRONMENTS[request.param])


@pytest.mark.parametrize("name", table.names)
def test_collective(world: World, name: str) -> None:
    world.check(name)
