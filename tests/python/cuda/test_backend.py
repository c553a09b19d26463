"""CUDA tensors through Isthmus, on a fake GPU: bits and counts are those of the CPU, other collectives are NCCL's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import isthmus
from python.cuda import collectives as cuda_collectives
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checks import Table, World, finish
from support.tested_codecs import CODECS

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
NODE_MAPS = ("2x2", "0,2|1,3", "4x1")
table = Table()


class Groups:
    """Gloo's group, and two groups of Isthmus for each set of options: one for CPU tensors, one for CUDA tensors."""

    def __init__(self) -> None:
        self.gloo = dist.new_group(backend="gloo")
        self._made: dict[str, dict[torch.device, dist.ProcessGroup]] = {}

    def __call__(self, **options: Any) -> dict[torch.device, dist.ProcessGroup]:
        options = {"nodes": "2x2", "min_elements": 0, **options}
        key = repr(sorted(options.items()))
        if key not in self._made:
            self._made[key] = {device: new_group(**options) for device in (CPU, CUDA)}
        for group in self._made[key].values():
            isthmus.reset_stats(group)
        return self._made[key]


def new_group(**options: Any) -> dist.ProcessGroup:
    return dist.new_group(backend="isthmus", pg_options=isthmus.Options(**options))


def whole_numbers(numel: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """This rank's gradient on the CPU: its sums are exact in all types, whatever their order."""
    generator = torch.Generator().manual_seed(100 * salt + dist.get_rank())
    return (4 * torch.randn(numel, generator=generator)).round().to(dtype)


def reduce_scatter(group: dist.ProcessGroup, source: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    shard = torch.empty(source.numel() // WORLD_SIZE, dtype=source.dtype, device=source.device)
    with isthmus.unit("x"):
        dist.reduce_scatter_tensor(shard, source, op, group=group)
    return shard


def all_reduce(group: dist.ProcessGroup, source: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    result = source.clone()
    with isthmus.unit("y"):
        dist.all_reduce(result, op, group=group)
    return result


Reduction = Callable[[dist.ProcessGroup, torch.Tensor, Any], torch.Tensor]


def same_bits(groups: dict[torch.device, dist.ProcessGroup], call: Reduction, source: torch.Tensor, op: Any) -> None:
    expected = call(groups[CPU], source, op)
    result = call(groups[CUDA], source.to(CUDA), op)
    assert result.device == CUDA and result.dtype == expected.dtype
    assert torch.equal(result.cpu(), expected), (call.__name__, source.dtype, source.numel(), op)


# --- gradients


@table
def gradients_have_the_bits_of_the_cpu(groups: Groups) -> None:
    """With residuals: several steps of one unit, of which the last have no gradient of their own."""
    half = dist._make_nccl_premul_sum(0.5)
    for nodes in NODE_MAPS:
        for options in CODECS.values():
            both = groups(nodes=nodes, **options)
            for dtype in FLOATS:
                for step in range(3):
                    source = whole_numbers(WORLD_SIZE * 3001, dtype, salt=step) * (step < 2)
                    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, half):
                        same_bits(both, reduce_scatter, source, op)
                        same_bits(both, all_reduce, source[: 9001 + step % 2], op)


@table
def float32_gradients_that_are_no_whole_numbers_have_the_bits_of_the_cpu(groups: Groups) -> None:
    """Two summands have one order."""
    for options in CODECS.values():
        both = groups(**options)
        for step in range(4):
            source = torch.randn(
                WORLD_SIZE * 5000, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())
            )
            same_bits(both, reduce_scatter, source, dist.ReduceOp.AVG)
            same_bits(both, all_reduce, source, dist.ReduceOp.AVG)


@table
def the_counts_are_those_of_the_cpu(groups: Groups) -> None:
    for options in (*CODECS.values(), {"min_elements": 10_000}):
        both = groups(**options)
        for step in range(3):
            source = whole_numbers(WORLD_SIZE * 3000, torch.float32, salt=step)
            same_bits(both, reduce_scatter, source, dist.ReduceOp.SUM)
            same_bits(both, all_reduce, source[:9001], dist.ReduceOp.SUM)
            for device, group in both.items():
                shard = whole_numbers(5000, torch.float32).to(device)
                dist.all_gather_into_tensor(torch.empty(WORLD_SIZE * 5000, device=device), shard, group=group)
        dist.barrier(group=both[CUDA])
        torch.cuda.synchronize()
        expected, found = (counts(isthmus.stats(both[device])) for device in (CPU, CUDA))
        assert found == expected


def counts(stats: dict[str, Any]) -> dict[str, Any]:
    """Statistics without what is different on purpose: time, memory, and the calls of this test's own."""
    kept = ("codec", "compressed_calls", "exact_calls", "num_units", "residual_bytes")
    collectives = {
        name: {
            key: {counter: value for counter, value in entry.items() if "bytes" in counter}
            if isinstance(entry, dict)
            else entry
            for key, entry in collective.items()
            if key in ("calls", "intra", "inter")
        }
        for name, collective in stats["collectives"].items()
    }
    return {"collectives": collectives, **{key: stats[key] for key in kept}}


@table
def cpu_and_cuda_tensors_share_a_group(groups: Groups) -> None:
    """Interleaved, and waited for in another order. Units of the two have residuals of their own."""
    both = groups(**CODECS["tagc"], max_units=4001)
    started = []
    for step in range(6):
        source = whole_numbers(WORLD_SIZE * 4096, torch.float32, salt=step)
        for device in (CPU, CUDA):
            with isthmus.unit(f"on {device.type}"):
                for group, place in ((both[CPU], CPU), (both[CUDA], device)):
                    shard = torch.empty(4096, device=place)
                    work = dist.reduce_scatter_tensor(shard, source.to(place), group=group, async_op=True)
                    started.append((work, shard))
    for work, _ in reversed(started):
        work.wait()
    for (_, expected), (_, result) in zip(started[::2], started[1::2], strict=True):
        assert torch.equal(result.cpu(), expected)
    assert isthmus.stats(both[CUDA])["num_units"] == 2


@table
def works_that_nobody_waits_for(groups: Groups) -> None:
    group = groups()[CUDA]
    for step in range(5):
        source = whole_numbers(WORLD_SIZE * 4096, torch.float32, salt=step).to(CUDA)
        shard = torch.empty(4096, device=CUDA)
        with isthmus.unit("forgotten"):
            work = dist.reduce_scatter_tensor(shard, source, group=group, async_op=True)
        del work, source, shard
        gc.collect()
    torch.cuda.synchronize()


@table
def works_and_futures(groups: Groups) -> None:
    both = groups()
    source = whole_numbers(WORLD_SIZE * 100, torch.float32)
    expected = reduce_scatter(both[CPU], source)
    shard = torch.empty(100, device=CUDA)
    with isthmus.unit("x"):
        work = dist.reduce_scatter_tensor(shard, source.to(CUDA), group=both[CUDA], async_op=True)
    assert work.get_future().then(lambda future: future.value()[0] + 1).wait().cpu().equal(expected + 1)
    work.wait()
    work.wait()
    assert work.is_completed() and work.is_success()
    assert work.result()[0].data_ptr() == shard.data_ptr()
    assert shard.cpu().equal(expected)


@table
def residuals_can_be_saved_and_loaded(groups: Groups) -> None:
    """They leave the GPU as CPU tensors, and another group goes on from them."""
    options = {**CODECS["tagc"], "max_units": 4002}
    both = groups(**options)
    source = whole_numbers(WORLD_SIZE * 4096, torch.float32)
    for call in (reduce_scatter, all_reduce):
        same_bits(both, call, source, dist.ReduceOp.SUM)
    expected, found = (backend(both[device]).unit_states() for device in (CPU, CUDA))
    assert [unit["name"] for unit in found] == [unit["name"] for unit in expected] != []
    for unit, wanted in zip(found, expected, strict=True):
        assert unit["residual"].any()
        for key, value in wanted.items():
            assert torch.equal(unit[key], value) if isinstance(value, torch.Tensor) else unit[key] == value, key
        assert all(not value.is_cuda for value in unit.values() if isinstance(value, torch.Tensor))
    fresh = {CPU: both[CPU], CUDA: new_group(nodes="2x2", min_elements=0, **options)}
    for unit in found:
        backend(fresh[CUDA]).load_unit(unit)
    for step in range(3):
        source = whole_numbers(WORLD_SIZE * 4096, torch.float32, salt=step + 1)
        for call in (reduce_scatter, all_reduce):
            same_bits(fresh, call, source, dist.ReduceOp.SUM)


def backend(group: dist.ProcessGroup) -> Any:
    found = group._get_backend(CUDA)
    return getattr(found, "wrapped_pg", found)


# --- everything else


@table
def barriers_and_objects(groups: Groups) -> None:
    group = groups()[CUDA]
    dist.barrier(group=group)
    dist.barrier(group=group, device_ids=[0])
    values: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(values, dist.get_rank(), group=group)
    assert values == list(range(WORLD_SIZE))


@table
def a_large_all_gather_crosses_in_two_tiers(groups: Groups) -> None:
    for nodes in NODE_MAPS:
        group = groups(nodes=nodes)[CUDA]
        for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.complex64):
            for numel in (1, 1001):
                own = whole_numbers(numel, torch.float32).to(dtype)
                expected = torch.empty(WORLD_SIZE * numel, dtype=dtype)
                dist.all_gather_into_tensor(expected, own, group=groups.gloo)
                result = torch.empty(WORLD_SIZE * numel, dtype=dtype, device=CUDA)
                dist.all_gather_into_tensor(result, own.to(CUDA), group=group)
                assert torch.equal(result.cpu(), expected)
        assert isthmus.stats(group)["collectives"]["all_gather"]["calls"] == 10


def calls_in_tiers(group: dist.ProcessGroup) -> int:
    calls: int = isthmus.stats(group)["collectives"]["all_gather"]["calls"]
    return calls


@table
def small_all_gathers_are_the_world_backends(groups: Groups) -> None:
    group = groups(min_elements=4004)[CUDA]
    for numel, calls in ((1000, 0), (1001, 1)):
        result = torch.empty(WORLD_SIZE * numel, device=CUDA)
        dist.all_gather_into_tensor(result, torch.ones(numel, device=CUDA), group=group)
        assert bool((result.cpu() == 1).all())
        assert calls_in_tiers(group) == calls


@table
def an_all_gather_in_place_or_coalesced_takes_two_tiers(groups: Groups) -> None:
    """In place as FSDP2's: the own shard lies in the result."""
    group = groups()[CUDA]
    result = torch.zeros(400, device=CUDA)
    own = result[100 * dist.get_rank() : 100 * (dist.get_rank() + 1)]
    own.fill_(dist.get_rank())
    with dist._coalescing_manager(group, CUDA):
        dist.all_gather_into_tensor(result, own, group=group)
    assert torch.equal(result.cpu(), torch.arange(4.0).repeat_interleave(100))
    assert calls_in_tiers(group) == 1


@table
def subgroups_splits_and_meshes(groups: Groups) -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    split = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    pairs = {"shard": [rank // 2 * 2, rank // 2 * 2 + 1], "replicate": [rank % 2, rank % 2 + 2]}
    for group, members in (
        (mesh.get_group("shard"), pairs["shard"]),
        (mesh.get_group("replicate"), pairs["replicate"]),
        (split, pairs["replicate"]),
        (DeviceMesh.from_group(groups()[CUDA], "cuda").get_group(), list(range(WORLD_SIZE))),
    ):
        tensor = torch.tensor([float(rank), 1.0], device=CUDA)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [sum(members), len(members)]


for collective in cuda_collectives.CALLS:
    table.checks[collective] = lambda groups, name=collective: cuda_collectives.compare(
        name, groups()[CUDA], groups.gloo
    )


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init(device_id=CUDA)
    failures = table.run_on_this_rank(Groups())
    finish()
    return failures


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, run=fake_gpu.run, env={"ISTHMUS_LOG": "error", "ISTHMUS_NODES": "2x2"})


@pytest.mark.parametrize("name", table.names)
def test_cuda(world: World, name: str) -> None:
    world.check(name)


@pytest.fixture(scope="module")
def debugged_world() -> World:
    env = {"ISTHMUS_LOG": "error", "ISTHMUS_NODES": "2x2", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    return World(main, WORLD_SIZE, run=fake_gpu.run, env=env)


@pytest.mark.parametrize("name", table.names)
def test_cuda_with_torch_checking_calls(debugged_world: World, name: str) -> None:
    debugged_world.check(name)
