"""DDP with `isthmus.prepare`, and HSDP: all-reduces between nodes."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import isthmus
from gpu.worlds.training import CODECS, PLAIN, Run, require_close, require_follows, require_learns, trained
from gpu.worlds.world import World, require

TOLERANCE = 2e-3
NUM_STEPS = 25
COMPRESSED = {"default": require_follows, "default in segments": require_follows, "tagc": require_learns}


def run(world: World) -> None:
    """Train each way on the plain backend and on isthmus."""
    compare(world, "DDP", ddp, prepared_ddp)
    if not world.short:
        compare(world, "HSDP", hsdp, hsdp)


def compare(world: World, name: str, plain_wrap, isthmus_wrap) -> None:  # type: ignore[no-untyped-def]
    """Check codec none and the default one against the plain backend."""
    num_steps = 12 if world.short else NUM_STEPS
    runs: dict[str, Run] = {}

    def plain() -> dict[str, float]:
        runs["plain"] = trained(world, plain_wrap, world.plain_backend, PLAIN, num_steps)
        return {"last loss": runs["plain"].losses[-1]}

    def exact() -> dict[str, float]:
        run = trained(world, isthmus_wrap, "isthmus", CODECS["none"], num_steps)
        return require_close(run, runs["plain"], TOLERANCE)

    def compressed(codec: str, judge: Callable[[Run, Run], dict[str, float]]) -> dict[str, float]:
        run = trained(world, isthmus_wrap, "isthmus", CODECS[codec], num_steps)
        require(run.units and min(run.units.values()) >= num_steps - 4, "units", run.units)
        return judge(run, runs["plain"])

    world.check(f"{name} on {world.plain_backend}", plain)
    world.check(f"{name} on isthmus, codec none", exact)
    for codec, judge in COMPRESSED.items():
        world.check(f"{name} on isthmus, codec {codec}", lambda: compressed(codec, judge))  # noqa: B023


def ddp(world: World, model: nn.Module) -> nn.Module:
    """Wrap a model that needs no names of its buckets."""
    return DistributedDataParallel(model)


def prepared_ddp(world: World, model: nn.Module) -> nn.Module:
    """Wrap a model, and make its buckets known to Isthmus."""
    return isthmus.prepare(ddp(world, model))


def hsdp(world: World, model: nn.Module) -> nn.Module:
    """Shard within each node, replicate across nodes."""
    mesh = init_device_mesh(world.device.type, (2, 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
