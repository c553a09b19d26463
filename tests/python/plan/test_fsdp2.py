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


def called(model):
    """The collectives of a step, with the ranks of each; those of a single rank move nothing and do not count."""
    with record_collectives() as recording:
        model(torch.ones(3, 33)).sum().backward()
    return Counter(signature(call) for call in recording.collectives if len(call.ranks) > 1)


def signature(call):
    return str(call.kind), tuple(call.ranks), call.num_elements, call.element_bytes


def predicted(strategy, model, cluster, rank):
    (chosen,) = strategies_named([strategy], WireOptions())
    world = world_formula("gloo", cluster.ranks_per_node)
    setting = Setting(model, cluster, world, ElementBytes.of("bf16", "fp32"))
    return Counter(signature(operation.on(rank, cluster)) for operation in StepPlan(setting, chosen).operations)


def wrapped(mesh, **arguments):
    model = Model()
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
