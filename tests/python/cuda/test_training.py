"""Models train on a fake GPU over Isthmus as on the CPU over Gloo: FSDP2, HSDP, FSDP1 and DDP."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import isthmus
from python.cuda import worlds as cuda_worlds
from python.training import test_fsdp as fsdp
from python.training import wraps
from support import fake_gpu
from support.checks import Table
from support.families import WORLD_SIZE, Block, Family, check_against, run_table, same_on_all_ranks, train, world

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]
table = Table()


def mesh(*shape: int) -> DeviceMesh:
    """A mesh on the device that models are made on."""
    names = ("replicate", "shard")[-len(shape) :]
    return init_device_mesh(torch.get_default_device().type, shape, mesh_dim_names=names)


def fsdp2(model: nn.Module, shape: tuple[int, ...] = (WORLD_SIZE,), **settings: Any) -> nn.Module:
    return fsdp.fsdp2(model, mesh=mesh(*shape), **settings)


def fsdp1(model: nn.Module, **settings: Any) -> nn.Module:
    device = torch.empty(0).device
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, **settings)


def fsdp1_offloaded(model: nn.Module) -> nn.Module:
    on_gpu = torch.empty(0).is_cuda  # torch's own refuses to run on CPUs alone
    return fsdp1(model, cpu_offload=CPUOffload(offload_params=on_gpu))


FAMILIES = {
    "fsdp2": Family(fsdp2, modes=("none", "default")),
    "bfloat16_parameters": Family(
        functools.partial(fsdp2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
        rounding=fsdp.BFLOAT16,
        modes=("none", "default"),
    ),
    "hsdp": Family(
        functools.partial(fsdp2, shape=(2, 2)),
        collectives=("all_reduce",),
        exact=fsdp.hsdp_family().exact,
        gathers=False,
        modes=("none", "default"),
    ),
    "fsdp1": fsdp.fsdp1_family(fsdp1, modes=("default",)),
    # Weights and gradients are on the CPU between steps, and on the GPU where collectives run.
    "fsdp2_offloaded": Family(functools.partial(fsdp2, offload_policy=CPUOffloadPolicy()), modes=("default",)),
    "fsdp1_offloaded": fsdp.fsdp1_family(fsdp1_offloaded, modes=("prepared",)),
    "ddp": wraps.ddp_family(wraps.ddp, modes=("prepared", "backward")),  # NCCL's exact sums are not Gloo's bits
}


def check(family: Family, store: dist.Store) -> None:
    with world(store, "gloo"):
        plain = train(family, "gloo")
        assert same_on_all_ranks(plain.weights)
    torch.set_default_device("cuda")
    try:
        plain.weights, plain.start = plain.weights.cuda(), plain.start.cuda()
        check_against(plain, family, store)
    finally:
        torch.set_default_device("cpu")


for name, family in FAMILIES.items():
    table.checks[name] = functools.partial(check, family)


def attached(store: dist.Store) -> None:
    """A model over NCCL trains bit for bit as over Isthmus by name."""
    torch.set_default_device("cuda")
    runs = {}
    try:
        for backend in ("isthmus", "cpu:gloo,cuda:nccl"):
            with world(store, "default", backend=backend):
                wrap = isthmus.prepare if backend == "isthmus" else isthmus.attach
                runs[backend] = train(Family(lambda model, wrap=wrap: wrap(fsdp2(model))), "default")
    finally:
        torch.set_default_device("cpu")
    by_name, over_nccl = runs.values()
    assert torch.equal(over_nccl.weights, by_name.weights)
    assert (over_nccl.losses, over_nccl.units) == (by_name.losses, by_name.units)
    assert over_nccl.compressed == by_name.compressed > 0


table(attached)


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_table(rank, world_size, table)


test_training = table.in_world(main, WORLD_SIZE, run=fake_gpu.run)
