"""Models trained over isthmus as over the plain backend: FSDP2, HSDP, FSDP1 and DDP, with and without `attach`."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, MixedPrecisionPolicy

import isthmus
from gpu.worlds.world import World
from python.training import test_fsdp as fsdp
from python.training import wraps
from support import families
from support.families import WORLD_SIZE, Family


def mesh(*shape: int) -> DeviceMesh:
    """A mesh on the device that models are made on. With names of its own over each backend: torch caches by them."""
    names = tuple(f"{name}_{dist.get_backend()}" for name in ("replicate", "shard")[-len(shape) :])
    return init_device_mesh(torch.get_default_device().type, shape, mesh_dim_names=names)


def fsdp2(model: nn.Module, shape: tuple[int, ...] = (WORLD_SIZE,), **settings: Any) -> nn.Module:
    """Shard each block, then the rest."""
    return fsdp.fsdp2(model, mesh=mesh(*shape), **settings)


def fsdp1(model: nn.Module, **settings: Any) -> nn.Module:
    """Do so by FSDP1."""
    return wraps.fsdp1(model, device_id=torch.empty(0).device, **settings)


def fsdp1_offloaded(model: nn.Module) -> nn.Module:
    """Do so, with weights on the CPU between steps."""
    return fsdp1(model, cpu_offload=CPUOffload(offload_params=True))


FAMILIES = {
    "FSDP2": Family(fsdp2, modes=("none", "default", "delta", "tagc")),
    "FSDP2 in bfloat16": Family(
        functools.partial(fsdp2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
        rounding=fsdp.BFLOAT16,
        modes=("none", *fsdp.BOTH),
    ),
    "HSDP": Family(
        functools.partial(fsdp2, shape=(2, 2)),
        collectives=("all_reduce",),
        exact=fsdp.hsdp_family().exact,
        gathers=False,
        modes=("none", *fsdp.BOTH),
    ),
    "FSDP1": fsdp.fsdp1_family(fsdp1, modes=fsdp.BOTH),
    # Weights and gradients are on the CPU between steps, and on the GPU where collectives run.
    "FSDP2, offloaded": Family(functools.partial(fsdp2, offload_policy=CPUOffloadPolicy()), modes=fsdp.BOTH),
    "FSDP1, offloaded": fsdp.fsdp1_family(fsdp1_offloaded, modes=("prepared", "prepared delta")),
    "DDP": wraps.ddp_family(wraps.ddp, modes=("prepared", "backward")),  # NCCL's exact sums have other bits
}


def run(world: World) -> None:
    """Train each family on the plain backend and on isthmus."""
    torch.set_default_device(world.device)
    for name, family in FAMILIES.items():
        if not world.short or name == "FSDP2":
            world.check(f"{name} on isthmus follows nccl", lambda: follows(world, family))  # noqa: B023
    if not world.short:
        world.check("a model over NCCL, attached, has the bits of isthmus by name", lambda: attached(world))


def follows(world: World, family: Family) -> dict[str, float]:
    """As near to plain training as each mode's codec lets it; weights as differences change no bit."""
    # What offloads gathers its weights on the CPU, too.
    plain = families.check_family(family, world.store, "cpu:gloo,cuda:nccl")
    return {"first loss": plain.losses[0], "last loss": plain.losses[-1]}


def attached(world: World) -> None:
    """What FSDP2's hooks bring is reduced as what a group of Isthmus is asked for."""
    runs = []
    for backend, wrap in (("isthmus", isthmus.prepare), ("cpu:gloo,cuda:nccl", isthmus.attach)):
        with families.world(world.store, "default", backend=backend):
            family = Family(lambda model, wrap=wrap: wrap(fsdp2(model)))
            runs.append(families.train(family, "default"))
    by_name, over_nccl = runs
    assert torch.equal(over_nccl.weights, by_name.weights)
    assert (over_nccl.losses, over_nccl.units) == (by_name.losses, by_name.units)
    assert over_nccl.compressed == by_name.compressed > 0
