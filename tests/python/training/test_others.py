"""What else trains with torch.distributed: DDP, SimpleFSDP, tensor and pipeline parallelism, compiled code."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

import isthmus
from support.checks import Table, World
from support.families import (
    BLOCKS,
    FEATURES,
    STEPS,
    UNITS,
    WORLD_SIZE,
    Block,
    Family,
    Model,
    Run,
    add_family,
    assert_follows,
    batch,
    check_against,
    check_family,
    distance,
    gathered,
    is_prepared,
    isthmus_groups,
    run_table,
    same_on_all_ranks,
    train,
    units_of_groups,
    weights_of,
    world,
)

pytestmark = pytest.mark.processes

table = Table()


def fsdp2(model: Any, **settings: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


# --- DDP ---


def ddp(model: nn.Module, **settings: Any) -> nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=0.04, **settings)


class Skipping(Model):
    """Leaves out a block at every step."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.first(features)
        for block in list(self.blocks)[1:]:
            features = block(features)
        output: torch.Tensor = self.last(features)
        return output


def accumulate(training: Any, number: int) -> torch.Tensor:
    with training.model.no_sync():
        training.step(number)
    loss: torch.Tensor = training.step(number + 1)
    return loss


def zero(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Optimizer state on one rank each, which sends what it updated to the others."""
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=lr)


def ddp_family(wrap: Callable[[nn.Module], nn.Module] = ddp, **settings: Any) -> Family:
    return Family(**{"wrap": wrap, "labelled": False, "modes": ("default", "prepared", "backward"), **settings})


def replicated(model: Any) -> nn.Module:
    """The new DDP, which is FSDP2 inside."""
    mesh = init_device_mesh("cpu", (WORLD_SIZE,), mesh_dim_names=("replicate",))
    for block in model.blocks:
        replicate(block, mesh=mesh)
    return replicate(model, mesh=mesh)


DDP_FAMILIES = {
    "ddp": ddp_family(modes=("default", "prepared", "backward", "prepared tagc")),
    "ddp_static_graph": ddp_family(functools.partial(ddp, static_graph=True)),
    "ddp_unused_parameters": ddp_family(functools.partial(ddp, find_unused_parameters=True), make=Skipping),
    "ddp_bucket_views": ddp_family(functools.partial(ddp, gradient_as_bucket_view=True)),
    "ddp_accumulated": ddp_family(backward=accumulate),
    "ddp_zero_optimizer": ddp_family(optimizer=zero, modes=("default", "prepared")),
    "replicated": Family(replicated, collectives=("all_reduce",)),
}


@table
def ddp_joins_ranks_with_uneven_inputs(store: dist.Store) -> None:
    """Ranks without inputs reduce zeros, from outside of any backward pass; their buckets carry the same tags."""
    with world(store, "prepared"):
        model: Any = isthmus.prepare(ddp(Model()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for number in range(STEPS + dist.get_rank()):
                inputs = batch(number)
                distance(model(inputs), inputs).backward()
                optimizer.step()
                optimizer.zero_grad()
        alike = same_on_all_ranks(weights_of(model)), same_on_all_ranks(units_of_groups())
        compressed = isthmus.stats()["compressed_calls"]
    assert alike == (True, True)
    assert compressed > 0


# --- SimpleFSDP ---


class Gather(nn.Module):
    """Makes a sharded parameter whole for the forward pass; in the backward pass its gradient is reduce-scattered."""

    def forward(self, parameter: Any) -> torch.Tensor:
        whole = parameter.redistribute(placements=[Replicate()])
        local: torch.Tensor = whole.to_local(grad_placements=[Partial("avg")])
        return local


def simple_fsdp(model: nn.Module, compiler: str = "") -> nn.Module:
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            for name, parameter in list(module.named_parameters(recurse=False)):
                sharded = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
                module.register_parameter(name, sharded)
                parametrize.register_parametrization(module, name, Gather(), unsafe=True)
    if compiler:
        model.compile(backend=compiler, fullgraph=True)
    return model


SIMPLE_FAMILIES = {
    "simple_fsdp": ddp_family(simple_fsdp),
    "simple_fsdp_compiled": ddp_family(functools.partial(simple_fsdp, compiler="aot_eager"), modes=("backward",)),
}


# --- Tensor parallelism ---

ACROSS_NODES = [[0, 2], [1, 3]]  # data-parallel groups within the nodes, tensor-parallel ones across


def tensor_parallel(model: Any, *, mesh: Any = None, sequence: bool = False) -> nn.Module:
    """FSDP2 over the mesh dimension "dp", of layers that are split along "tp"."""
    mesh = DeviceMesh("cpu", mesh or [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    between = Shard(0) if sequence else Replicate()
    plan: dict[str, Any] = {"first": ColwiseParallel(output_layouts=between)}
    plan |= {
        f"blocks.{i}.linear": ColwiseParallel(input_layouts=between, output_layouts=between) for i in range(BLOCKS)
    }
    plan["last"] = RowwiseParallel(input_layouts=between, output_layouts=Replicate())
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


def tensor_parallel_family(**settings: Any) -> Family:
    """The bias of the last layer is on all ranks of "tp", beside a weight that is not: that unit is exact."""
    return Family(
        functools.partial(tensor_parallel, **settings),
        backward=step_of_data_rank,
        exact={
            "some parameters are replicated over another mesh dimension, others are not": STEPS,
            "the group is not on several nodes of one size": STEPS * (BLOCKS + 2),  # activations, within the nodes
        },
    )


TENSOR_PARALLEL_FAMILIES = {
    "tensor_parallel": tensor_parallel_family(),
    "sequence_parallel": tensor_parallel_family(sequence=True),
}


@table
def activations_between_nodes_are_exact(store: dist.Store) -> None:
    """Sequence parallelism over a group that spans nodes; gradients of weights stay within them.

    The option does not change that: the group is not the whole job, so nothing says what its ranks have copies of.
    """
    family = Family(functools.partial(tensor_parallel, mesh=ACROSS_NODES, sequence=True), backward=step_of_data_rank)
    with world(store, "gloo"):
        plain = train(family, "gloo")
    unlabelled = "not labelled, in a backward pass"
    copies = "unknown parameters, of which ranks outside of the group may hold copies"
    for mode, reason in (("default", unlabelled), ("prepared", unlabelled), ("backward", copies)):
        with world(store, mode):
            run = train(family, mode)
        assert run.compressed == 0, mode
        assert run.exact[reason] > 0, mode
        if mode == "backward":  # along the two tiers: exact, but for the order of sums
            torch.testing.assert_close(run.weights, plain.weights, rtol=0, atol=1e-5)
        else:
            assert torch.equal(run.weights, plain.weights), mode


# --- Pipeline parallelism ---


class Stage(nn.Module):
    """Half of a model."""

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


def train_pipeline(schedule_type: Any, mesh_ranks: list[list[int]], mode: str) -> Run:
    """Train two stages, each sharded over "dp"; what comes out is of the own stage."""
    mesh = DeviceMesh("cpu", mesh_ranks, mesh_dim_names=("dp", "pp"))
    index, data_rank = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    model = fsdp2(Stage(index), mesh=mesh["dp"])
    if is_prepared(mode):
        isthmus.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    start = weights_of(model)
    stage = PipelineStage(model, index, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = schedule_type(stage, n_microbatches=4, loss_fn=distance)
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
    )


@table
def pipeline_stages(store: dist.Store) -> None:
    """Stages within the nodes and FSDP across."""
    for schedule_type in (Schedule1F1B, ScheduleGPipe):
        runs = {}
        lossy = ("default", "prepared sparse") if schedule_type is Schedule1F1B else ("tagc", "prepared")
        for mode in ("gloo", "none", *lossy):
            with world(store, mode):
                runs[mode] = train_pipeline(schedule_type, [[0, 1], [2, 3]], mode)
                replicas = gathered(runs[mode].weights.tolist())
            assert replicas[0] == replicas[2] and replicas[1] == replicas[3]
        torch.testing.assert_close(runs["none"].weights, runs["gloo"].weights, rtol=0, atol=1e-5)
        for mode in lossy:
            assert_follows(runs[mode], runs["gloo"], mode)
            names = ("root", "blocks.0", "blocks.1")
            assert runs[mode].units == {f"{name} reduce_scatter": STEPS for name in names}


@table
def pipeline_stages_on_different_nodes(store: dist.Store) -> None:
    """What they send is exact: bit-equal to Gloo, as FSDP within the nodes is."""
    runs = {}
    for mode in ("gloo", "default"):
        with world(store, mode):
            runs[mode] = train_pipeline(Schedule1F1B, ACROSS_NODES, mode)
    assert torch.equal(runs["default"].weights, runs["gloo"].weights)
    assert runs["default"].losses == runs["gloo"].losses


# --- Groups ---


@table
def a_group_inside_a_node_is_exact_and_pays_nothing(store: dist.Store) -> None:
    family = Family(
        lambda model: fsdp2(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))["within"])
    )
    with world(store, "gloo"):
        plain = train(family, "gloo")
    with world(store, "default"):
        run = train(family, "default")
        (within,) = [group for group in isthmus_groups() if isthmus.stats(group)["calls"].get("_reduce_scatter_base")]
        stats = isthmus.stats(within)
    assert torch.equal(run.weights, plain.weights)
    assert stats["node_map"] == "1 node x 2 ranks, in blocks"
    assert run.compressed == stats["num_units"] == stats["residual_bytes"] == stats["scratch_bytes"] == 0
    sent = [
        tier["inter_node_sent_bytes"]
        for kind in stats["collectives"].values()
        for tier in kind.values()
        if isinstance(tier, dict)
    ]
    assert sent and not any(sent)


@table
def a_group_of_one_rank_a_node_is_all_between_nodes(store: dist.Store) -> None:
    family = Family(
        lambda model: fsdp2(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))["across"])
    )
    with world(store, "gloo"):
        plain = train(family, "gloo")
    with world(store, "default"):
        run = train(family, "default")
        (across,) = [group for group in isthmus_groups() if isthmus.stats(group)["calls"].get("_reduce_scatter_base")]
        stats = isthmus.stats(across)
    assert stats["node_map"] == "2 nodes x 1 rank, in blocks"
    assert run.units == {f"{unit} reduce_scatter": STEPS for unit in UNITS}
    assert stats["collectives"]["reduce_scatter"]["intra"]["sent_bytes"] == 0
    assert stats["collectives"]["reduce_scatter"]["inter"]["inter_node_sent_bytes"] > 0
    assert_follows(run, plain, "default")


# --- Modes of torch ---


def fsdp2_of_compiled_blocks(model: Any) -> nn.Module:
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    return fsdp2(model)


def compiled_fsdp2(model: nn.Module) -> nn.Module:
    fsdp2(model)
    model.compile(backend="aot_eager")
    return model


def compiled_ddp(model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.compile(backend="aot_eager")
    return wrapped


COMPILED_FAMILIES = {
    "fsdp2_of_compiled_blocks": Family(fsdp2_of_compiled_blocks, modes=("default",)),
    "compiled_fsdp2": Family(compiled_fsdp2, modes=("prepared",)),
    "compiled_ddp": ddp_family(compiled_ddp, modes=("prepared",)),
}


@table
def deterministic_algorithms(store: dist.Store) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        check_family(Family(fsdp2, modes=("default",)), store)
        check_family(ddp_family(modes=("prepared",)), store)
    finally:
        torch.use_deterministic_algorithms(False)


@table
def debug_level_detail(store: dist.Store) -> None:
    """Torch wraps every backend then, and checks each call on all ranks. (Torch 2.11 crashes with DDP over Gloo.)"""
    for family in (Family(fsdp2, clips=False), ddp_family(clips=False)):
        with world(store, "gloo"):
            plain = train(family, "gloo")
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            check_against(plain, family, store)
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)


for name, family in (DDP_FAMILIES | SIMPLE_FAMILIES | TENSOR_PARALLEL_FAMILIES | COMPILED_FAMILIES).items():
    add_family(table, name, family)


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore")
    return run_table(rank, world_size, table)


@pytest.fixture(scope="module")
def results() -> World:
    return World(main, WORLD_SIZE)


@pytest.mark.parametrize("name", table.names)
def test_family(results: World, name: str) -> None:
    results.check(name)
