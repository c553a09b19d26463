"""Unmodified training loops over the backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import isthmus
from support import ranks
from support.checks import finish
from support.tested_codecs import CODECS, DEFAULT, LOSSY

pytestmark = pytest.mark.processes

WORLD_SIZE = 4
STEPS = 5
FEATURES = 64


def make_model() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, FEATURES)) for _ in range(3)]
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), *blocks)


def shard(model: nn.Module, **settings: Any) -> nn.Module:
    for block in list(model)[1:]:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def fsdp2(model: nn.Module) -> nn.Module:
    return shard(model)


def fsdp2_bfloat16(model: nn.Module) -> nn.Module:
    return shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))


def fsdp2_float16(model: nn.Module) -> nn.Module:
    return shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16))


def fsdp2_with_divide_factor(model: nn.Module) -> nn.Module:
    """What torchtitan does: the reductions arrive as PREMUL_SUM."""
    shard(model)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(2.0)
    return model


def hsdp(model: nn.Module) -> nn.Module:
    return shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def hsdp_across_nodes(model: nn.Module) -> nn.Module:
    """Shards along the rails, so that the compressed collective runs in subgroups."""
    return shard(model, mesh=DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard")))


def fsdp1(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def train(backend: str, wrap: Callable[[nn.Module], nn.Module], factor: float) -> tuple[list[float], list[Any]]:
    """Return the mean losses, and the statistics of each group. SGD: steps are as wrong as the gradients."""
    ranks.init(backend)
    model = wrap(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=factor * 8.0)
    torch.manual_seed(10 + dist.get_rank())
    inputs = torch.randn(32, FEATURES)
    losses = []
    for _ in range(STEPS):
        loss = (model(inputs).float() - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item() / WORLD_SIZE)
    stats = []
    if backend == "isthmus":
        stats = [isthmus.stats(group) for group in dist.distributed_c10d._world.pg_map]
    finish()
    return losses, stats


TAGC = {"ISTHMUS_CODEC": "tagc", "ISTHMUS_SPARSITY": "0.8", "ISTHMUS_RATIO": "2"}
RUNS: dict[str, tuple[str, Callable[[nn.Module], nn.Module], dict[str, str]]] = {
    "gloo": ("gloo", fsdp2, {}),
    "gloo_in_larger_steps": ("gloo", fsdp2, {}),
    "gloo_bfloat16": ("gloo", fsdp2_bfloat16, {}),
    "gloo_float16": ("gloo", fsdp2_float16, {}),
    "fsdp2": ("isthmus", fsdp2, {}),
    "fsdp2_bfloat16": ("isthmus", fsdp2_bfloat16, {}),
    "fsdp2_float16": ("isthmus", fsdp2_float16, {}),
    "fsdp2_with_divide_factor": ("isthmus", fsdp2_with_divide_factor, {}),
    "fsdp1": ("isthmus", fsdp1, {}),
    "hsdp": ("isthmus", hsdp, {}),
    "hsdp_across_nodes": ("isthmus", hsdp_across_nodes, {}),
    "ddp": ("isthmus", ddp, {}),
    "default": ("isthmus", fsdp2, {"ISTHMUS_CODEC": DEFAULT}),
    "tagc": ("isthmus", fsdp2, TAGC),
    "tagc_flat": ("isthmus", fsdp2, {**TAGC, "ISTHMUS_TIERS": "flat"}),
}


def main(rank: int, world_size: int, ports: list[int]) -> dict[str, tuple[list[float], list[Any]]]:
    """Train all runs in one process: each initialises and destroys the default group."""
    results = {}
    for port, (name, (backend, wrap, env)) in zip(ports, RUNS.items(), strict=True):
        os.environ.update({"ISTHMUS_CODEC": "none", "ISTHMUS_TIERS": "two", "MASTER_PORT": str(port), **env})
        results[name] = train(backend, wrap, 2 if name == "gloo_in_larger_steps" else 1)
    return results


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[list[float], list[Any]]]:
    env = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"}
    of_rank_0: dict[str, tuple[list[float], list[Any]]] = ranks.run(
        main, WORLD_SIZE, [ranks.free_port() for _ in RUNS], env=env
    )[0]
    return of_rank_0


def learnt(losses: list[float]) -> list[float]:
    """By how much losses have fallen: all that gradients have to do with them."""
    return [losses[0] - loss for loss in losses[1:]]


@pytest.mark.parametrize(
    ("name", "gloo", "tolerance", "reductions"),
    [
        ("fsdp2", "gloo", 1e-4, 4),
        ("fsdp2_bfloat16", "gloo_bfloat16", 0.002, 4),
        ("fsdp2_float16", "gloo_float16", 5e-4, 4),
        ("fsdp2_with_divide_factor", "gloo_in_larger_steps", 1e-4, 4),  # Gloo has no PREMUL_SUM
        ("fsdp1", "gloo", 1e-4, 1),
        ("hsdp", "gloo", 1e-4, 0),
        ("hsdp_across_nodes", "gloo", 1e-4, 4),
        ("ddp", "gloo", 1e-4, 0),
    ],
)
def test_codec_none_trains_as_gloo_does(results: Any, name: str, gloo: str, tolerance: float, reductions: int) -> None:
    losses, stats = results[name]
    assert learnt(losses) == pytest.approx(learnt(results[gloo][0]), rel=tolerance)
    calls = [group["collectives"]["reduce_scatter"]["calls"] for group in stats]
    assert sum(calls) == reductions * STEPS
    all_reduces = [group["collectives"]["all_reduce"]["calls"] for group in stats]
    assert sum(all_reduces) == (4 * STEPS if name == "hsdp" else 0)
    unlabelled = [group["exact_calls"].get("not labelled, in a backward pass", 0) for group in stats]
    assert sum(unlabelled) == (STEPS + 0 if name == "ddp" else 0)


def test_the_default_codec_trains_as_gloo_does(results: Any) -> None:
    losses, (stats, *_) = results["default"]
    assert learnt(losses) != pytest.approx(learnt(results["gloo"][0]), rel=1e-4)
    assert learnt(losses) == pytest.approx(learnt(results["gloo"][0]), rel=0.005)
    assert stats["compressed_calls"] == 4 * STEPS
    assert stats["residual_bytes"] == 0


@pytest.mark.parametrize(("name", "share"), [("tagc", 0.95), ("tagc_flat", 0.93)])
def test_tagc_learns(results: Any, name: str, share: float) -> None:
    """Error feedback makes up for what was not sent: it learns at least `share` of what exact training does."""
    losses, (stats, *_) = results[name]
    exact = results["gloo"][0]
    assert learnt(losses) != pytest.approx(learnt(exact), rel=1e-4)
    assert exact[-1] <= losses[-1] < losses[0] - share * (losses[0] - exact[-1])
    assert stats["compressed_calls"] == 4 * STEPS
    assert stats["num_units"] == 4


def losses_over_an_own_group(codec: str, scale: float) -> list[float]:
    group = dist.new_group(pg_options=isthmus.Options(**CODECS[codec]))
    model = shard(make_model(), mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        loss = (model(torch.randn(8, FEATURES, generator=generator)) * scale).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert isthmus.stats(group)["compressed_calls"] == 4 * STEPS
    assert (isthmus.stats(group)["residual_bytes"] > 0) == (codec == "tagc")
    return losses


def train_equal_models(rank: int, world_size: int) -> list[tuple[list[float], list[float]]]:
    ranks.init()
    losses = []
    for codec in LOSSY:
        alone = losses_over_an_own_group(codec, 1.0)
        losses_over_an_own_group(codec, 10.0)
        losses.append((alone, losses_over_an_own_group(codec, 1.0)))
    finish()
    return losses


def test_models_with_groups_of_their_own_do_not_share_residuals() -> None:
    env = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "1000"}
    for of_codecs in ranks.run(train_equal_models, WORLD_SIZE, env=env):
        for alone, after_another in of_codecs:
            assert alone == after_another
        assert len({tuple(alone) for alone, _ in of_codecs}) == len(LOSSY), "the codecs do not differ"
