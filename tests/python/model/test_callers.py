"""Lossy is what FSDP itself reduces, and nothing else that runs meanwhile: told by the object that makes the call."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_common
from torch.distributed.tensor import DTensor, Shard

import isthmus
from isthmus.base.backends import backend_of
from python.model.identity import group_of
from support.checkpoints import OwnReduceScatter, exact_calls, mesh_of
from support.checks import Table

table = Table()
WIDTH = 64
INSIDE = "inside of FSDP's reduction, but not its own"
OWN = "in a reduce-scatter of the program's own"


class Layers(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)  # type: ignore[no-any-return]


def inputs(step: int = 0, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(8, width, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


def gloo() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


def sharded(mesh: DeviceMesh) -> nn.Module:
    model = Layers()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mesh_2x2(backend: str, **options: Any) -> DeviceMesh:
    """Replicas on two nodes, or shards: both dimensions of the mesh cross between nodes."""
    chosen: Any = backend
    if backend == "isthmus":
        chosen = ("isthmus", isthmus.Options(nodes="0,3|1,2", min_elements=0, **options))
    return init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("replicate", "shard"), backend_override={0: chosen, 1: chosen}
    )


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error < 1e-5, f"the largest error is {error:.2g} of the largest element"


# --- Hooks of FSDP2 ---


def in_a_hook(model: Any, reduce: Callable[[DTensor], torch.Tensor]) -> torch.Tensor:
    """Return what `reduce` makes of a gradient of ones in a hook that runs when it was accumulated."""
    found = []

    def hook(parameter: Any) -> None:
        parameter.grad.to_local().copy_(torch.linspace(-1, 1, parameter.grad.to_local().numel()).view(-1, WIDTH))
        found.append(reduce(parameter.grad).clone())

    model.layers[0].weight.register_post_accumulate_grad_hook(hook)
    model(inputs()).square().mean().backward()
    return found[0]


@table
def a_hook_that_reduces_the_gradient_itself_is_exact() -> None:
    """The hook's tensor is the very memory that FSDP2 all-reduced, over the very group."""

    def run(mesh: DeviceMesh) -> torch.Tensor:
        def again(gradient: DTensor) -> torch.Tensor:
            dist.all_reduce(gradient.to_local(), group=mesh.get_group("replicate"))
            return gradient.to_local()

        return in_a_hook(sharded(mesh), again)

    expected = run(mesh_2x2("gloo"))
    mesh = mesh_2x2("isthmus")
    assert_close(run(mesh), expected)
    process_group = mesh.get_group("replicate")
    assert isthmus.stats(process_group)["compressed_calls"] == 4
    assert exact_calls(process_group) == {INSIDE: 1}, exact_calls(process_group)


@table
def a_users_all_reduce_hook_is_exact() -> None:
    results = []
    for process_group in (gloo(), group_of()):
        model: Any = sharded(mesh_of(process_group))
        found: list[torch.Tensor] = []

        def hook(reduced: torch.Tensor, group: Any = process_group, found: list[torch.Tensor] = found) -> None:
            reduced.copy_(torch.linspace(-1, 1, reduced.numel()))
            dist.all_reduce(reduced, group=group)
            found.append(reduced.clone())

        for module in model.layers:
            module.set_all_reduce_hook(hook)
        model(inputs()).square().mean().backward()
        results.append(torch.cat(found))
    assert_close(results[1], results[0])
    assert exact_calls(process_group) == {INSIDE: 4}
    assert isthmus.stats(process_group)["compressed_calls"] == 4


@table
def a_collective_of_the_users_own_is_compressed() -> None:
    """One that FSDP2 was handed reduces FSDP2's tensors; what else it does is exact."""

    class Own(OwnReduceScatter):
        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
            largest = torch.linspace(-1, 1, 4096)
            dist.all_reduce(largest, group=group)
            assert_close(largest, torch.linspace(-4, 4, 4096))
            return super().__call__(output_tensor, input_tensor, group, op, async_op)

    process_group = group_of()
    model: Any = sharded(mesh_of(process_group))
    model.layers[0].set_custom_reduce_scatter(Own())
    model(inputs()).square().mean().backward()
    assert isthmus.stats(process_group)["compressed_calls"] == 4
    assert exact_calls(process_group) == {OWN: 1}, exact_calls(process_group)


# --- Hooks of FSDP1 ---


def fsdp1(process_group: dist.ProcessGroup, hook: Any = None, **settings: Any) -> Any:
    model = FullyShardedDataParallel(Layers(), process_group=process_group, device_id=torch.device("cpu"), **settings)
    if hook is not None:
        model.register_comm_hook(process_group, hook)
    return model


@table
def what_else_a_hook_of_fsdp1_reduces_is_exact() -> None:
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD):
        found: list[torch.Tensor] = []

        def hook(group: Any, gradient: torch.Tensor, shard: Any = None, found: list[torch.Tensor] = found) -> None:
            found.append(torch.linspace(-1, 1, gradient.numel()))
            dist.all_reduce(found[-1], group=group)
            if shard is None:
                dist.all_reduce(gradient, group=group)
            else:
                dist.reduce_scatter_tensor(shard, gradient, group=group)

        process_group = group_of()
        model = fsdp1(process_group, hook, sharding_strategy=strategy)
        model(inputs()).square().mean().backward()
        assert_close(found[0], torch.linspace(-4, 4, found[0].numel()))
        assert exact_calls(process_group) == {INSIDE: 1}, strategy
        assert isthmus.stats(process_group)["compressed_calls"] == 1, strategy


# --- Tags of users ---


@table
def a_users_tag_around_a_backward_pass_leaves_fsdp_its_units() -> None:
    names = {}
    for wrap in (lambda group: sharded(mesh_of(group)), fsdp1):
        for tags in (False, True):
            process_group = group_of()
            model = wrap(process_group)
            loss = model(inputs()).square().mean()
            if tags:
                with isthmus.unit("grads"):
                    loss.backward()
                    dist.all_reduce(torch.ones(4096), group=process_group)
            else:
                loss.backward()
            names[tags] = {unit["name"] for unit in isthmus.stats(process_group)["units"]}
        assert names[True] == names[False] | {"grads"}


@table
def reductions_under_one_tag_are_units_of_their_own() -> None:
    """What is zero stays zero, with a codec that keeps what it did not send."""
    values = torch.randn(4096, generator=torch.Generator().manual_seed(dist.get_rank()))
    for coalesced in (False, True):
        process_group = group_of(codec="tagc", sparsity=0.75, ratio=2)
        for _ in range(3):
            tensors = [values.clone(), torch.zeros(4096)]
            with isthmus.unit("grads"):
                if coalesced:
                    dist.all_reduce_coalesced(tensors, group=process_group)
                else:
                    with isthmus.unit("inner"):
                        dist.all_reduce(values.clone(), group=process_group)
                    for tensor in tensors:
                        dist.all_reduce(tensor, group=process_group)
            assert float(tensors[1].abs().max()) == 0, (coalesced, float(tensors[1].abs().max()))
        states = {unit["name"]: unit["step"] for unit in backend_of(process_group).unit_states()}
        expected = {"grads": 3, "grads (2)": 3}
        assert states == (expected if coalesced else {**expected, "inner": 3}), coalesced


# --- Two groups of parameters in one module ---


@table.skip_if(not hasattr(_fsdp_common, "ShardPlacementResult"), "this torch has one group in a module")
def two_groups_of_parameters_of_one_module_have_names() -> None:
    for prepare in (False, True):
        process_group, other = group_of(), group_of()
        info = _fsdp_common.FSDPMeshInfo(mesh_of(other), shard_mesh_dim=0)
        model = Layers()
        apart = {model.layers[2].weight, model.layers[3].weight}

        def place(parameter: nn.Parameter, info: Any = info, apart: Any = apart) -> Any:
            return _fsdp_common.ShardPlacementResult(Shard(0), info) if parameter in apart else None

        fully_shard(model.layers, mesh=mesh_of(process_group), shard_placement_fn=place)
        fully_shard(model, mesh=mesh_of(process_group))
        if prepare:
            isthmus.prepare(model)
        for step in range(2):
            model(inputs(step)).square().mean().backward()
        names = {unit["name"] for group in (process_group, other) for unit in isthmus.stats(group)["units"]}
        assert names == {"layers", "layers [2]"}, names
        assert exact_calls(process_group) == exact_calls(other) == {}


test_callers = table.in_world(env={"ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "error"})
