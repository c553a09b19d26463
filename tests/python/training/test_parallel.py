"""Tensor, sequence and pipeline parallelism beside FSDP2, and groups that are not the whole world."""

import functools
import warnings
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import isthmus
from python.training.wraps import fsdp2
from support.checks import Table
from support.families import (
    BLOCKS,
    FEATURES,
    INSIDE_A_NODE,
    STEPS,
    WORLD_SIZE,
    Block,
    Family,
    Run,
    assert_follows,
    batch,
    check_family,
    distance,
    gathered,
    is_prepared,
    isthmus_groups,
    run_table,
    units_of_groups,
    weights_of,
    world,
)

table = Table()
# --- Tensor parallelism ---


def tensor_parallel(model: Any) -> nn.Module:
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    whole = ColwiseParallel(output_layouts=Replicate())
    plan: dict[str, Any] = {"first": whole, **{f"blocks.{i}.linear": whole for i in range(BLOCKS)}}
    plan["last"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model.last, mesh=mesh["dp"])
    fsdp2(model, mesh=mesh["dp"])
    model.data_rank = mesh["dp"].get_local_rank()
    return model


def step_of_data_rank(training: Any, number: int) -> torch.Tensor:
    inputs = batch(number, training.model.data_rank)
    loss = distance(training.model(inputs), inputs)
    loss.backward()
    return loss


# The bias of the last layer is on all ranks of "tp", beside a weight that is not: that unit is exact.
FAMILY = Family(
    tensor_parallel,
    backward=step_of_data_rank,
    modes=("default", "delta"),
    exact={
        "some parameters are replicated over another mesh dimension, others are not": STEPS,
        INSIDE_A_NODE: STEPS * (BLOCKS + 2),  # activations, within the nodes
    },
)


# --- Pipeline parallelism ---


class Stage(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        torch.manual_seed(index)
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.linear(features)
        for block in self.blocks:
            features = block(features)
        return features


def train_pipeline(mode: str) -> Run:
    """Train two stages, each sharded over "dp"; what comes out is of the own stage."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "pp"))
    index, data_rank = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    model = fsdp2(Stage(index), mesh=mesh["dp"])
    if is_prepared(mode):
        isthmus.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    start = weights_of(model)
    stage = PipelineStage(model, index, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=distance)
    all_losses = []
    for step in range(STEPS):
        inputs = batch(step, data_rank)
        losses: list[torch.Tensor] = []
        if index == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=inputs, losses=losses)
        all_losses.append(float(sum(losses, torch.zeros(())).detach()))
        optimizer.step()
        optimizer.zero_grad()
    stats = [isthmus.stats(group) for group in isthmus_groups()]
    return Run(
        losses=[sum(column) for column in zip(*gathered(all_losses), strict=True)],
        norms=[],
        start=start,
        weights=weights_of(model),
        units=units_of_groups(),
        exact=Counter(),
        compressed=sum(entry["compressed_calls"] for entry in stats),
        calls=Counter(),
        deltas=[entry["weights"] for entry in stats],
    )


@table
def pipeline_stages(store: dist.Store) -> None:
    runs = {}
    lossy = ("default", "delta", "prepared")
    for mode in ("gloo", "none", *lossy):
        with world(store, mode):
            runs[mode] = train_pipeline(mode)
            replicas = gathered(runs[mode].weights.tolist())
        assert replicas[0] == replicas[2] and replicas[1] == replicas[3]
    torch.testing.assert_close(runs["none"].weights, runs["gloo"].weights, rtol=0, atol=1e-5)
    for mode in lossy:
        assert_follows(runs[mode], runs["gloo"], mode)
        names = ("root", "blocks.0", "blocks.1")
        assert runs[mode].units == {f"{name} reduce_scatter": STEPS for name in names}
    assert torch.equal(runs["delta"].weights, runs["default"].weights)
    assert sum(entry["gathers"] for entry in runs["delta"].deltas) > 0


table.checks["tensor_parallel"] = functools.partial(check_family, FAMILY)


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore")
    return run_table(rank, world_size, table)


test_family = table.in_world(main, WORLD_SIZE)
