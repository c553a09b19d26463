"""CUDA tensors in process groups of Isthmus: what is different from the CPU, on the fake GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import isthmus
from isthmus import native as _native
from isthmus.backends import isthmus_backend
from python.cuda import collectives as cuda_collectives
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checks import Table, World, finish
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


def native(group: dist.ProcessGroup | None = None) -> Any:
    backend = isthmus_backend(group or dist.group.WORLD)
    assert backend is not None
    return backend


@contextlib.contextmanager
def unit(name: str) -> Iterator[None]:
    """Reductions in here are gradients of this unit."""
    _native.load().push_unit(name, 0, "")
    try:
        yield
    finally:
        _native.load().pop_unit()


def gradient(device: torch.device, salt: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * salt + dist.get_rank())
    return torch.randn(ELEMENTS, generator=generator).to(dtype).to(device)


def reduce_scatter(device: torch.device, group: dist.ProcessGroup, salt: int = 0, **arguments: Any) -> torch.Tensor:
    shard = torch.empty(ELEMENTS // WORLD_SIZE, device=device)
    with unit("unit"):
        dist.reduce_scatter_tensor(shard, gradient(device, salt), group=group, **arguments)
    return shard


# --- the two-tier path


@table
def factors_are_applied_once(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    plain = reduce_scatter(GPU, group)
    assert torch.equal(reduce_scatter(GPU, group, op=dist.ReduceOp.AVG).cpu(), plain.cpu() / WORLD_SIZE)
    quarter = dist._make_nccl_premul_sum(0.25)
    assert torch.equal(reduce_scatter(GPU, group, op=quarter).cpu(), plain.cpu() / 4)
    small = cuda_collectives.data(GPU, 8)  # to the world backend, which has the operation
    dist.all_reduce(small, quarter, group=group)
    expected = cuda_collectives.data(CPU, 8)
    dist.all_reduce(expected, group=gloo)
    assert torch.equal(small.cpu(), expected / 4)
    of_another_type = dist._make_nccl_premul_sum(torch.tensor([0.25], device=GPU))  # NCCL would read it as bfloat16
    with pytest.raises(TypeError, match="PREMUL_SUM of BFloat16 by a tensor of Float"):
        dist.all_reduce(cuda_collectives.data(GPU, 8).bfloat16(), of_another_type, group=group)


@table
def what_is_not_contiguous(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    expected = reduce_scatter(GPU, group).cpu()
    holder = torch.zeros(ELEMENTS // WORLD_SIZE, 2, device=GPU)
    with unit("unit"):
        dist._reduce_scatter_base(holder[:, 0], gradient(GPU), group=group)
    assert torch.equal(holder.cpu()[:, 0], expected) and not holder.cpu()[:, 1].any()
    wide = torch.stack([gradient(GPU), gradient(GPU)], dim=1)
    with unit("unit"):
        dist.all_reduce(wide[:, 1], group=group)
    assert torch.equal(wide.cpu()[:, 0], gradient(CPU))
    assert torch.equal(wide.cpu()[:, 1][: expected.numel()] if dist.get_rank() == 0 else expected, expected)


# --- Works


@table
def works_of_several(gloo: dist.ProcessGroup) -> None:
    group = group_of(codec="none")
    expected = reduce_scatter(CPU, group)
    with unit("unit"):
        shard = funcol.reduce_scatter_tensor(gradient(GPU), "sum", 0, group)
    assert torch.equal(funcol.wait_tensor(shard).cpu(), expected)
    shards = [torch.empty_like(expected, device=GPU) for _ in range(2)]
    with unit("unit"), dist._coalescing_manager(group, async_ops=True) as coalesced:
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
        with unit("unit"):
            group._reduce_scatter_base(shards[0], gradient(GPU), dist.ReduceScatterOptions())
    coalesced.wait()
    assert arrived.cpu().tolist() == [peer] * 3
    assert torch.equal(shards[0].cpu(), expected)


@table
def profilers_see_phases(gloo: dist.ProcessGroup) -> None:
    group = group_of()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        reduce_scatter(GPU, group)
    names = {event.name for event in profile.events()}
    assert {"isthmus:reduce_scatter", "encode", "inter exchange", "decode"} <= names, sorted(names)


# --- groups


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
    with pytest.raises(isthmus.OptionError, match="tiers=flat is for the CPU"):
        reduce_scatter(GPU, group_of(**CODECS["tagc"], tiers="flat"))


# --- units


@table
def states_move_between_devices(gloo: dist.ProcessGroup) -> None:
    source = group_of(**CODECS["tagc"])
    for salt in range(2):
        reduce_scatter(GPU, source, salt)
    saved = native(source).unit_states()
    assert saved[0]["residual"].device == CPU and saved[0]["residual"].any() and saved[0]["step"] == 2
    expected = reduce_scatter(GPU, source, 2).cpu()
    for device in (GPU, CPU):
        group = group_of(**CODECS["tagc"])
        native(group).load_unit(saved[0])
        assert torch.equal(reduce_scatter(device, group, 2).cpu(), expected), device
        (state,) = native(group).unit_states()
        assert state["step"] == 3
    native(source).scale_residuals(2.0)
    native(source).end_step(skipped=True)
    assert isthmus.stats(source)["skipped_steps"] == 1
    native(source).clear_units()
    assert native(source).unit_states() == []


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init(device_id=GPU, pg_options=isthmus.Options(**OPTIONS))
    failures = table.run_on_this_rank(dist.new_group(backend="gloo"))
    finish()
    return failures


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, run=fake_gpu.run, env={"FAKE_GPU_COUNT": "2"})


@pytest.mark.parametrize("name", table.names)
def test_cuda(world: World, name: str) -> None:
    world.check(name)
