"""CUDA tensors in process groups of Isthmus, on the fake GPU: bits of the CPU, NCCL's collectives, Works, groups."""

import gc
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import isthmus
from isthmus.base.backends import backend_of
from python.backend.test_collective_calls import CALLS
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checks import Table, finish
from support.tested_codecs import CODECS

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
OPTIONS = {"nodes": "2x2", "min_elements": 0}
ELEMENTS = 4096
table = Table()


def group_of(backend: str = "isthmus", **options: Any) -> dist.ProcessGroup:
    return dist.new_group(backend=backend, pg_options=isthmus.Options(**{**OPTIONS, **options}))


def gradient(device: torch.device, salt: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * salt + dist.get_rank())
    return torch.randn(ELEMENTS, generator=generator).to(dtype).to(device)


def reduce_scatter(device: torch.device, group: dist.ProcessGroup, salt: int = 0, **arguments: Any) -> torch.Tensor:
    shard = torch.empty(ELEMENTS // WORLD_SIZE, device=device)
    with isthmus.unit("unit"):
        dist.reduce_scatter_tensor(shard, gradient(device, salt), group=group, **arguments)
    return shard


@table
def works_under_way_leave_torchs_table_when_they_are_waited_for(default: dist.ProcessGroup) -> None:
    group = group_of()
    shard, gathered, own = (torch.ones(size, device=GPU) for size in (ELEMENTS // WORLD_SIZE, 4 * ELEMENTS, ELEMENTS))
    with funcol.allow_inflight_collective_as_graph_input_ctx():
        with isthmus.unit("unit"):
            reduced = dist.reduce_scatter_tensor(shard, gradient(GPU), group=group, async_op=True)
        works = [reduced, dist.all_gather_into_tensor(gathered, own, group=group, async_op=True)]
        assert torch._C._distributed_c10d._get_work_registry_size() == len(works)
        for work in works:
            work.wait()
    assert torch._C._distributed_c10d._get_work_registry_size() == 0


# --- the two-tier path


def whole_numbers(numel: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """This rank's gradient on the CPU: its sums are exact in all types, whatever their order."""
    generator = torch.Generator().manual_seed(100 * salt + dist.get_rank())
    return (4 * torch.randn(numel, generator=generator)).round().to(dtype)


@table
def any_placement_has_the_bits_of_the_cpu(gloo: dist.ProcessGroup) -> None:
    """Whole numbers, since the CPU's sums have another order. All else: gpu.worlds.collectives."""
    source = whole_numbers(WORLD_SIZE * 3001, torch.float32)
    for nodes, options in product(("0,2|1,3", "4x1"), (*CODECS.values(), CODECS["tagc"] | {"tiers": "flat"})):
        results = []
        for device in (CPU, GPU):
            group = group_of(nodes=nodes, **options)
            shard, whole = torch.empty(3001, device=device), source[:9001].to(device, copy=True)
            with isthmus.unit("unit"):
                dist.reduce_scatter_tensor(shard, source.to(device), group=group)
                dist.all_reduce(whole, group=group)
            results.append((shard.cpu(), whole.cpu()))
        assert all(map(torch.equal, *results)), (nodes, options)


@table
def every_other_collective_gives_what_gloo_gives(gloo: dist.ProcessGroup) -> None:
    group = group_of()
    root = dist.get_rank() == 1
    for name, call in CALLS.items():
        if name == "gradients" or name.startswith("premultiplied") or name == "all_gather_coalesced":
            continue  # above; not in Gloo; not in NCCL
        results = []
        for device, used in ((GPU, group), (CPU, gloo)):
            sent, received = (whole_numbers(24, torch.float32, salt).view(WORLD_SIZE, 6).to(device) for salt in (1, 2))
            call(used, sent, received)
            results.append([received.cpu()] if name == "reduce" and not root else [sent.cpu(), received.cpu()])
        assert all(map(torch.equal, *results)), name


@table
def factors_are_applied_once(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    plain = reduce_scatter(GPU, group)
    assert torch.equal(reduce_scatter(GPU, group, op=dist.ReduceOp.AVG).cpu(), plain.cpu() / WORLD_SIZE)
    quarter = dist._make_nccl_premul_sum(0.25)
    assert torch.equal(reduce_scatter(GPU, group, op=quarter).cpu(), plain.cpu() / 4)
    small = whole_numbers(8, torch.float32).to(GPU)  # to the world backend, which has the operation
    dist.all_reduce(small, quarter, group=group)
    expected = whole_numbers(8, torch.float32)
    dist.all_reduce(expected, group=gloo)
    assert torch.equal(small.cpu(), expected / 4)
    of_another_type = dist._make_nccl_premul_sum(torch.tensor([0.25], device=GPU))  # NCCL would read it as bfloat16
    with pytest.raises(TypeError, match="PREMUL_SUM of BFloat16 by a tensor of Float"):
        dist.all_reduce(whole_numbers(8, torch.float32).to(GPU).bfloat16(), of_another_type, group=group)


# --- Works


@table
def works_of_several(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    expected = reduce_scatter(CPU, group)
    with isthmus.unit("unit"):
        shard = funcol.reduce_scatter_tensor(gradient(GPU), "sum", 0, group)
    assert torch.equal(funcol.wait_tensor(shard).cpu(), expected)
    shards = [torch.empty_like(expected, device=GPU) for _ in range(2)]
    with isthmus.unit("unit"), dist._coalescing_manager(group, async_ops=True) as coalesced:
        for shard in shards:
            dist.reduce_scatter_tensor(shard, gradient(GPU), group=group)
    coalesced.wait()
    assert all(torch.equal(shard.cpu(), expected) for shard in shards)
    # A reduction of two tiers between messages, which NCCL starts together.
    rank, peer = dist.get_rank(), dist.get_rank() ^ 1
    sent = torch.full((3,), float(rank), device=GPU)  # kept: it leaves when the group ends
    arrived = torch.empty(3, device=GPU)
    with dist._coalescing_manager(group, GPU, async_ops=True) as coalesced:
        dist.isend(sent, peer, group)
        dist.irecv(arrived, peer, group)
        with isthmus.unit("unit"):
            group._reduce_scatter_base(shards[0], gradient(GPU), dist.ReduceScatterOptions())
    coalesced.wait()
    assert arrived.cpu().tolist() == [peer] * 3
    assert torch.equal(shards[0].cpu(), expected)


# --- groups


@table
def works_that_nobody_waits_for(gloo: dist.ProcessGroup) -> None:
    group = group_of()
    for step in range(5):
        source = whole_numbers(WORLD_SIZE * 4096, torch.float32, salt=step).to(GPU)
        shard = torch.empty(4096, device=GPU)
        with isthmus.unit("forgotten"):
            work = dist.reduce_scatter_tensor(shard, source, group=group, async_op=True)
        del work, source, shard
        gc.collect()
    torch.cuda.synchronize()


@table
def works_and_futures(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    expected = reduce_scatter(CPU, group)
    shard = torch.empty_like(expected, device=GPU)
    with isthmus.unit("x"):
        work = dist.reduce_scatter_tensor(shard, gradient(GPU), group=group, async_op=True)
    assert work.get_future().then(lambda future: future.value()[0] + 1).wait().cpu().equal(expected + 1)
    work.wait()
    work.wait()
    assert work.is_completed() and work.is_success()
    assert work.result()[0].data_ptr() == shard.data_ptr()
    assert shard.cpu().equal(expected)


@table
def an_all_gather_in_place_or_coalesced_takes_two_tiers(gloo: dist.ProcessGroup) -> None:
    """In place as FSDP2's: the own shard lies in the result."""
    group = group_of()
    result = torch.zeros(400, device=GPU)
    own = result[100 * dist.get_rank() : 100 * (dist.get_rank() + 1)]
    own.fill_(dist.get_rank())
    with dist._coalescing_manager(group, GPU):
        dist.all_gather_into_tensor(result, own, group=group)
    assert torch.equal(result.cpu(), torch.arange(4.0).repeat_interleave(100))
    assert isthmus.stats(group)["collectives"]["all_gather"]["calls"] == 1


@table
def subgroups_splits_and_meshes(gloo: dist.ProcessGroup) -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    split = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    pairs = {"shard": [rank // 2 * 2, rank // 2 * 2 + 1], "replicate": [rank % 2, rank % 2 + 2]}
    for group, members in (
        (mesh.get_group("shard"), pairs["shard"]),
        (mesh.get_group("replicate"), pairs["replicate"]),
        (split, pairs["replicate"]),
        (DeviceMesh.from_group(group_of(), "cuda").get_group(), list(range(WORLD_SIZE))),
    ):
        tensor = torch.tensor([float(rank), 1.0], device=GPU)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [sum(members), len(members)]


@table
def names_of_backends(gloo: dist.ProcessGroup) -> None:
    for backend in ("cpu:isthmus,cuda:isthmus", "cpu:gloo,cuda:isthmus", "cuda:isthmus"):
        group = group_of(backend)
        reduce_scatter(GPU, group)
        assert isthmus.stats(group)["devices"]["cuda:0"]["compressed_calls"] == 1, backend
        dist.barrier(group)


@table
def another_gpu_is_refused(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    expected = reduce_scatter(GPU, group)
    with pytest.raises(ValueError, match="works on cuda:0 in this process, and got a tensor on cuda:1"):
        reduce_scatter(torch.device("cuda", 1), group)
    assert torch.equal(reduce_scatter(GPU, group).cpu(), expected.cpu())  # and it goes on


# --- units


@table
def states_move_between_devices(gloo: dist.ProcessGroup) -> None:
    source = group_of(**CODECS["tagc"])
    for salt in range(2):
        reduce_scatter(GPU, source, salt)
    saved = backend_of(source).unit_states()
    assert saved[0]["residual"].device == CPU and saved[0]["residual"].any() and saved[0]["step"] == 2
    expected = reduce_scatter(GPU, source, 2).cpu()
    for device in (GPU, CPU):
        group = group_of(**CODECS["tagc"])
        backend_of(group).load_unit(saved[0])
        assert torch.equal(reduce_scatter(device, group, 2).cpu(), expected), device
        (state,) = backend_of(group).unit_states()
        assert state["step"] == 3
    backend_of(source).scale_residuals(2.0)
    backend_of(source).skip_step()
    assert isthmus.stats(source)["skipped_steps"] == 1
    backend_of(source).clear_units()
    assert backend_of(source).unit_states() == []


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init(device_id=GPU, pg_options=isthmus.Options(**OPTIONS))
    failures = table.run_on_this_rank(dist.new_group(backend="gloo"))
    finish()
    return failures


test_cuda = table.in_world(main, WORLD_SIZE, run=fake_gpu.run, env={"FAKE_GPU_COUNT": "2"})
