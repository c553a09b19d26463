"""The collectives that FSDP2 really makes are those that placement predicts, for any mesh, in one process.

Torch's fake process group stands for the other ranks: nothing is sent, and results hold nothing, but FSDP2 calls what
it would call. What the calls then send is held against counters in test_bench_training.py.
"""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from isthmus.benchmarks.common.recorder import record_collectives
from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import Cluster, ElementBytes
from isthmus.plan.step import Setting, StepPlan
from isthmus.plan.strategies import strategies_named
from isthmus.plan.units import units_of
from isthmus.plan.volumes import world_formula
from isthmus.torch_private.models import param_groups_of

MESHES = [(2, 2), (3, 2), (2, 1), (1, 4), (4, 3)]


class Model(nn.Module):
    """Sizes that few numbers of ranks divide, a vector, a single element, and a block within a block."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(33, 35)
        self.blocks = nn.ModuleList([nn.Linear(35, 35), nn.Sequential(nn.Linear(35, 7), nn.Linear(7, 35))])
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x * self.scale


@pytest.fixture
def world():
    """Makes a world of fake ranks, of which this process is one."""

    def make(nodes, ranks_per_node, rank):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=nodes * ranks_per_node)

    yield make
    dist.destroy_process_group()


def mesh_of(strategy, nodes, ranks_per_node) -> DeviceMesh:
    if strategy == "hsdp":
        return init_device_mesh("cpu", (nodes, ranks_per_node), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (nodes * ranks_per_node,))


def called(model, micro_batches=1, defer=None):
    """The collectives of a step, with the ranks of each; those of a single rank move nothing and do not count."""
    with record_collectives() as recording:
        for index in range(micro_batches):
            if defer:
                getattr(model, defer)(index == micro_batches - 1)
            model(torch.ones(3, 33)).sum().backward()
    return Counter(signature(call) for call in recording.collectives if len(call.ranks) > 1)


def signature(call):
    return str(call.kind), tuple(call.ranks), call.num_elements, call.element_bytes


def plan_of(strategy, model, cluster, micro_batches=1):
    (chosen,) = strategies_named([strategy], WireOptions())
    world = world_formula("gloo", cluster.ranks_per_node)
    return StepPlan(Setting(model, cluster, world, ElementBytes.of("bf16", "fp32"), micro_batches), chosen)


def predicted(strategy, model, cluster, rank, micro_batches=1):
    plan = plan_of(strategy, model, cluster, micro_batches)
    return Counter(signature(operation.on(rank, cluster)) for operation in plan.operations.elements())


def wrapped(mesh, model=None, **arguments):
    model = model or Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, **arguments)
    assert isinstance(model, FSDPModule)
    return model


@pytest.mark.parametrize(("nodes", "ranks_per_node"), MESHES)
@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_fsdp2_makes_the_predicted_collectives(world, strategy, nodes, ranks_per_node):
    rank = nodes * ranks_per_node - 1
    world(nodes, ranks_per_node, rank)
    model = wrapped(mesh_of(strategy, nodes, ranks_per_node))
    expected = predicted(strategy, units_of(Model()), Cluster(nodes, ranks_per_node), rank)
    assert called(model) == expected
    assert called(model) == expected, "in the second step"


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(2, 2), (3, 2)])
def test_weights_that_stay_on_each_node_are_gathered_there(world, nodes, ranks_per_node):
    world(nodes, ranks_per_node, 2)
    model = wrapped(mesh_of("fsdp", nodes, ranks_per_node), reshard_after_forward=ranks_per_node)
    assert called(model) == predicted("fsdp-node", units_of(Model()), Cluster(nodes, ranks_per_node), 2)


DEFERS = {"fsdp": "set_requires_gradient_sync", "hsdp": "set_requires_all_reduce"}


@pytest.mark.parametrize("last", ["", "-last"])
@pytest.mark.parametrize("strategy", DEFERS)
def test_micro_batches_make_the_predicted_collectives(world, strategy, last):
    world(3, 2, 5)
    model = wrapped(mesh_of(strategy, 3, 2))
    expected = predicted(f"{strategy}{last}", units_of(Model()), Cluster(3, 2), 5, micro_batches=4)
    assert called(model, 4, DEFERS[strategy] if last else None) == expected


def kept_bytes(model):
    """Gradients that FSDP2 holds beside those that the parameters have."""
    kept = 0
    for module in model.modules():
        for group in param_groups_of(module):
            partial = group._partial_reduce_output
            grads = [parameter._unsharded_param.grad for parameter in group.fsdp_params]  # torch 2.15
            kept += sum(each.nbytes for each in [partial, *grads] if each is not None)
    return kept


@pytest.mark.parametrize("strategy", DEFERS)
def test_deferred_gradients_take_the_predicted_memory(world, strategy):
    world(3, 2, 5)
    model = wrapped(mesh_of(strategy, 3, 2))
    getattr(model, DEFERS[strategy])(False)
    model(torch.ones(3, 33)).sum().backward()
    assert kept_bytes(model) == plan_of(f"{strategy}-last", units_of(Model()), Cluster(3, 2), 4).memory.deferred
    getattr(model, DEFERS[strategy])(True)
    model(torch.ones(3, 33)).sum().backward()
    assert kept_bytes(model) == 0


@pytest.mark.parametrize("strategy", DEFERS)
def test_frozen_parameters_make_the_predicted_collectives(world, strategy):
    world(3, 2, 5)
    model = Model()
    model.requires_grad_(False)
    for trained in (model.embedding.bias, model.blocks[1][0].weight):
        trained.requires_grad_(True)
    expected = predicted(strategy, units_of(model), Cluster(3, 2), 5)
    assert called(wrapped(mesh_of(strategy, 3, 2), model)) == expected
