"""FSDP2 over all ranks: on isthmus, exact and compressed, against the plain backend; saved and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gpu.worlds.training import (
    CODECS,
    PLAIN,
    Run,
    Saved,
    make_model,
    make_optimizer,
    require_close,
    require_follows,
    require_learns,
    train,
    trained,
)
from gpu.worlds.world import World, require
from support.tested_codecs import environment

TOLERANCE = 2e-3  # of sums in another order, after all steps


def run(world: World) -> None:
    """Train with each codec and without Isthmus."""
    num_steps = 6 if world.short else 30
    runs: dict[str, Run] = {}

    def plain() -> dict[str, float]:
        runs["plain"] = trained(world, wrap, world.plain_backend, PLAIN, num_steps)
        return {"first loss": runs["plain"].losses[0], "last loss": runs["plain"].losses[-1]}

    def exact() -> dict[str, float]:
        run = trained(world, wrap, "isthmus", CODECS["none"], num_steps)
        require(not run.units, "codec none has no units", run.units)
        return require_close(run, runs["plain"], TOLERANCE)

    def compressed(codec: str, judge: Callable[[Run, Run], dict[str, float]]) -> dict[str, float]:
        run = runs[codec] = trained(world, wrap, "isthmus", CODECS[codec], num_steps)
        names = [f"{unit} reduce_scatter" for unit in ("root", "blocks.0", "blocks.1")]
        require(run.units == dict.fromkeys(names, num_steps), run.units)
        if world.short:
            return {"last loss": run.losses[-1], "last loss, plain": runs["plain"].losses[-1]}
        return judge(run, runs["plain"])

    def as_differences() -> dict[str, float]:
        run = trained(world, wrap, "isthmus", CODECS["default"] | environment({"weights": "delta"}), num_steps)
        require(run.units == runs["default"].units, run.units)
        return require_close(run, runs["default"], 0.0)

    def in_bfloat16() -> dict[str, float]:
        plain = trained(world, wrap_bfloat16, world.plain_backend, PLAIN, num_steps)
        run = trained(world, wrap_bfloat16, "isthmus", CODECS["default"], num_steps)
        require(len(run.units) == 3 and set(run.units.values()) == {num_steps}, run.units)
        return require_follows(run, plain)

    world.check(f"FSDP2 on {world.plain_backend}", plain)
    world.check(f"FSDP2 on isthmus, codec none: as on {world.plain_backend}", exact)
    world.check("FSDP2 on isthmus, default codec: it follows", lambda: compressed("default", require_follows))
    world.check(
        "FSDP2 on isthmus, default codec in segments: it follows",
        lambda: compressed("default in segments", require_follows),
    )
    world.check("FSDP2 on isthmus, codec tagc: it learns", lambda: compressed("tagc", require_learns))
    world.check("FSDP2 on isthmus, weights as differences: the same bits", as_differences)
    if not world.short:
        world.check("FSDP2 on isthmus, default codec: gradients in bfloat16", in_bfloat16)
        world.check("FSDP2 on isthmus, codec tagc: saved, resumed", lambda: resumed(world, runs["tagc"], num_steps))


def wrap(world: World, model: nn.Module, **settings: Any) -> nn.Module:
    """Shard each block, then the rest."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def wrap_bfloat16(world: World, model: nn.Module) -> nn.Module:
    """Do the same, but compute and reduce in bfloat16."""
    return wrap(world, model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def resumed(world: World, uninterrupted: Run, num_steps: int) -> dict[str, object]:
    """Stop in the middle, go on in a new group, and end where training ends that never stopped."""
    middle = num_steps // 2
    with world.group("isthmus", CODECS["tagc"]):
        model = wrap(world, make_model(world))
        optimizer = make_optimizer(model)
        before = train(world, model, optimizer, range(middle))
        saved = Saved.of(model, optimizer)
    with world.group("isthmus", CODECS["tagc"]):
        model = wrap(world, make_model(world))
        optimizer = make_optimizer(model)
        saved.load(world, model, optimizer)
        after = train(world, model, optimizer, range(middle, num_steps))
    losses = before.losses + after.losses
    require(uninterrupted.units == after.units, after.units)
    require_close(Run(losses, after.weights), uninterrupted, TOLERANCE)
    equal = [
        bool((ours == theirs).all()) for ours, theirs in zip(after.residuals, uninterrupted.residuals, strict=True)
    ]
    return {
        "the same bits": losses == uninterrupted.losses and all(equal),
        "units": len(after.units),
    }
