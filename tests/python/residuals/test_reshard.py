"""Residuals that were saved on some nodes reach the parameters' gradients on others.

What residuals owe is known from outside: the exact gradients less those that were delivered. Loaded elsewhere, they
have to deliver just that while all gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import isthmus
from support import ranks
from support.checkpoints import (
    FLOAT16,
    HYBRID,
    Gradients,
    added,
    backward,
    ddp,
    delivered_by_nothing,
    exact_gradients,
    fsdp1,
    fsdp2,
    full_gradients,
    group,
    hsdp_mesh,
    mesh_of,
    seed,
)
from support.checks import finish
from support.tested_codecs import Options

pytestmark = pytest.mark.processes

PASSES = 4
# Everything is sent: what was held back arrives at once.
LOSSLESS: dict[str, Options] = {
    "tagc": {"sparsity": 0.0, "ratio": 1},
    "sparse": {"sparsity": 0.0, "value_type": "fp32"},
}

# Each kind of model over ranks on nodes that `nodes` describes.
Maker = Callable[..., nn.Module]
MAKERS: dict[str, Maker] = {
    "fsdp2": lambda nodes, **options: fsdp2(mesh_of(group(nodes=nodes, **options))),
    "fsdp2 prepared": lambda nodes, **options: isthmus.prepare(fsdp2(mesh_of(group(nodes=nodes, **options)))),
    "fsdp2 float16": lambda nodes, **options: fsdp2(mesh_of(group(nodes=nodes, **options)), mp_policy=FLOAT16),
    "hsdp": lambda nodes, **options: fsdp2(hsdp_mesh(nodes, **options)),
    "hsdp prepared": lambda nodes, **options: isthmus.prepare(fsdp2(hsdp_mesh(nodes, **options)), name="hsdp"),
    "fsdp1 prepared": lambda nodes, **options: isthmus.prepare(
        fsdp1(mesh_of(group(nodes=nodes, **options)), use_orig_params=True), name="fsdp1"
    ),
    "fsdp1 hybrid prepared": lambda nodes, **options: isthmus.prepare(
        fsdp1(hsdp_mesh(nodes, **options), use_orig_params=True, sharding_strategy=HYBRID), name="hybrid"
    ),
    "ddp prepared": lambda nodes, **options: isthmus.prepare(ddp(group(nodes=nodes, **options)), name="ddp"),
}
SAVED = [(kind, "2x2") for kind in MAKERS] + [("fsdp2", "4x1"), ("fsdp2 prepared", "4x1"), ("ddp prepared", "4x1")]
LOADED = {4: ["4x1", "2x2", "0,3|1,2"], 2: ["2x1"]}
CASES = [
    (kind, before, after)
    for kind, before in SAVED
    for nodes in LOADED.values()
    for after in nodes
    if "hybrid" not in kind or not after.endswith("x1")  # where FSDP1 reduces nothing
]


# What is saved may be loaded into models that are sharded in another way.
CROSSED = [("hsdp", "2x2", "fsdp2", "2x2"), ("fsdp2", "2x2", "hsdp", "2x2"), ("hsdp", "2x2", "fsdp2", "4x1")]


def codec_of(kind: str) -> str:
    """Return the codec of a kind of models; what was saved with one is loaded with it."""
    return "sparse" if kind in ("fsdp2 prepared", "fsdp2 float16", "hsdp prepared", "fsdp1 hybrid prepared") else "tagc"


def make(kind: str, nodes: str, **options: Any) -> nn.Module:
    with seed(0):
        return MAKERS[kind](nodes, codec=codec_of(kind), **options)


def make_lossless(kind: str, nodes: str) -> nn.Module:
    return make(kind, nodes, **LOSSLESS[codec_of(kind)])


def folder_of(folder: Path, kind: str, nodes: str) -> Path:
    return folder / f"{kind} {nodes}"


def save_all(rank: int, world_size: int, folder: Path) -> None:
    """Save each model's residuals, and what they owe to its gradients."""
    ranks.init()
    exact = exact_gradients(world_size, PASSES)
    owed = {}
    for kind, nodes in SAVED:
        model = make(kind, nodes)
        delivered: Gradients = {}
        for step in range(PASSES):
            backward(model, step)
            delivered = added(delivered, full_gradients(model))
        dcp.save({"isthmus": isthmus.state_dict(model)}, checkpoint_id=folder_of(folder, kind, nodes))
        owed[kind, nodes] = added(exact, delivered, -1)
    if rank == 0:
        torch.save(owed, folder / "owed")
    finish()


def load_all(rank: int, world_size: int, folder: Path) -> None:
    """Load each model's residuals; save what they deliver then."""
    ranks.init()
    results = {}
    for kind, before, after in CASES:
        if after in LOADED[world_size]:
            model = make_lossless(kind, after)
            report = isthmus.load_checkpoint(folder_of(folder, kind, before), model)
            results[kind, before, after] = report, delivered_by_nothing(model, 8)
    for kind, before, other, after in CROSSED if world_size == 4 else []:
        model = make_lossless(other, after)
        report = isthmus.load_checkpoint(folder_of(folder, kind, before), model)
        results[kind, before, other, after] = report, delivered_by_nothing(model, 8)
    if rank == 0:
        torch.save(results, folder / f"delivered by {world_size}")
    finish()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("checkpoints")
    ranks.run(save_all, 4, folder)
    results = {}
    for world_size in LOADED:
        ranks.run(load_all, world_size, folder)
        results |= torch.load(folder / f"delivered by {world_size}", weights_only=False)
    return torch.load(folder / "owed"), results


def assert_arrived(delivered: Gradients, owed: Gradients, tolerance: float) -> None:
    largest = max(float(value.abs().max()) for value in owed.values())
    assert largest > 1
    torch.testing.assert_close(delivered, owed, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize(("kind", "before", "after"), CASES)
def test_residuals_arrive_on_other_ranks(runs: Any, kind: str, before: str, after: str) -> None:
    report, delivered = runs[1][kind, before, after]
    assert not report.dropped
    assert report.restored if before == after else report.resharded
    assert_arrived(delivered, runs[0][kind, before], 1e-2 if "float16" in kind else 1e-5)


@pytest.mark.parametrize(("kind", "before", "other", "after"), CROSSED)
def test_residuals_arrive_in_other_models(runs: Any, kind: str, before: str, other: str, after: str) -> None:
    report, delivered = runs[1][kind, before, other, after]
    assert len(report.resharded) == 3 and not report.restored and not report.dropped
    assert_arrived(delivered, runs[0][kind, before], 1e-5)
