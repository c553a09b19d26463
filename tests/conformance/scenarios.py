"""What takes several calls: objects, tensors that know their layout, gradients through collectives."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from case import values
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

Scenario = Callable[[dist.ProcessGroup], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def own(group: dist.ProcessGroup, *shape: int, salt: int = 0) -> torch.Tensor:
    return values(torch.float32, shape, 1000 * salt + dist.get_rank(group))


@scenario
def barriers(group: dist.ProcessGroup) -> Any:
    dist.barrier(group)
    return dist.barrier(group, async_op=True).wait(timedelta(seconds=30))


@scenario
def monitored_barrier(group: dist.ProcessGroup) -> None:
    dist.monitored_barrier(group, timedelta(seconds=30))


@scenario
def all_gather_object(group: dist.ProcessGroup) -> Any:
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, {"rank": dist.get_rank(group), "data": own(group, dist.get_rank(group))}, group)
    return gathered


@scenario
def operations_in_flight(group: dist.ProcessGroup) -> Any:
    """Several operations that take different ways, waited for in another order."""
    size = dist.get_world_size(group)
    sums, copies = [own(group, 9, salt=s) for s in range(4)], [own(group, 5, salt=s) for s in range(4)]
    gathered = [torch.zeros(size * 2000) for _ in range(4)]
    works = []
    for tensor, copy, output in zip(sums, copies, gathered, strict=True):
        works.append(dist.all_reduce(tensor, group=group, async_op=True))
        works.append(dist.all_gather_into_tensor(output, own(group, 2000), group, async_op=True))
        works.append(dist.broadcast(copy, group=group, group_src=0, async_op=True))
    for work in reversed(works):
        work.wait()
    return sums, copies, gathered


@scenario
def coalesced_functions(group: dist.ProcessGroup) -> Any:
    """The coalesced collectives that torch.distributed has beside the coalescing manager."""
    size = dist.get_world_size(group)
    sums = [own(group, 9), own(group, 2, 3)]
    dist.all_reduce_coalesced(sums, group=group)
    outputs = [[torch.zeros(9), torch.zeros(2, 3)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [own(group, 9), own(group, 2, 3)], group)
    copies = [own(group, 9), own(group, 2, 3)]
    dist._broadcast_coalesced(group, copies, 64, 0)
    return sums, outputs, copies


@scenario
def coalesced_functional_collectives(group: dist.ProcessGroup) -> Any:
    size = dist.get_world_size(group)
    parts, wholes = [own(group, 5), own(group, 2000)], [own(group, size * 3), own(group, size * 2000)]
    results = [
        funcol.all_reduce_coalesced(parts, "avg", group),
        funcol.all_gather_into_tensor_coalesced(parts, group),
        funcol.reduce_scatter_tensor_coalesced(wholes, "sum", [0, 0], group),
    ]
    return [[funcol.wait_tensor(tensor) for tensor in tensors] for tensors in results]


@scenario
def functional_collectives_with_gradients(group: dist.ProcessGroup) -> Any:
    size = dist.get_world_size(group)
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: funcol.all_gather_tensor_autograd(t, 0, group),
        lambda t: funcol.reduce_scatter_tensor_autograd(t, "sum", 0, group),
        lambda t: funcol.all_to_all_single_autograd(t, [2] * size, [2] * size, group),
    ]
    return [_with_gradient(call, own(group, 2 * size, 3)) for call in calls]


def _with_gradient(call: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> Any:
    tensor.requires_grad_()
    result = call(tensor)
    result.square().sum().backward()
    assert tensor.grad is not None
    return result.detach(), tensor.grad


@scenario
def dtensor_redistribute(group: dist.ProcessGroup) -> Any:
    """Every placement to every other, of even and uneven shapes."""
    mesh = DeviceMesh.from_group(group, "cpu")
    placements: list[Placement] = [Replicate(), Shard(0), Shard(1), Partial(), Partial("avg"), Partial("max")]
    results = []
    for shape, source, target in product([(8, 12), (5, 7), (1, 3), (64, 64)], placements, placements[:4]):
        if source.is_replicate() and target.is_partial():
            continue
        local = own(group, *shape) if source.is_partial() else values(torch.float32, shape, 0)
        if source.is_partial():
            tensor = DTensor.from_local(local, mesh, [source])
        else:
            tensor = distribute_tensor(local, mesh, [source])
        try:
            results.append(tensor.redistribute(mesh, [target]).to_local())
        except Exception as error:
            results.append(type(error).__name__)
    return results
