"""Copies of parameters under tensor parallelism stay equal, under every wrapper."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

import isthmus
from python.model.identity import KEEPING, REASONS
from support.checks import Table

table, table_of_six = Table(), Table()
WIDTH = 512
STEPS = 5


class Parallel(nn.Module):
    """Layers that are split over "tp", and some that every rank of it has a copy of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.copied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 64, bias=False)
        self.down = nn.Linear(64, WIDTH, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.copied(self.norm(features)))))  # type: ignore[no-any-return]


class Marked(nn.Module):
    """Plain tensors, some of them marked as parts as Megatron does it; copies of sizes that fill no blocks.

    The gradients of copies do not depend on the parts.
    """

    def __init__(self, tp: DeviceMesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.copied = nn.Linear(WIDTH, WIDTH - 35)
        torch.manual_seed(tp.get_local_rank())
        self.part = nn.Linear(WIDTH, 35, bias=False)
        self.mark()

    def mark(self) -> None:
        """What Megatron's own wrapper of FSDP2 does again after it: torch makes other parameters."""
        self.part.weight.tensor_model_parallel = True  # type: ignore[assignment]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.copied(self.norm(features)), self.part(features)], 1)


class Copied(nn.Module):
    """Plain layers that every rank has a copy of."""

    def __init__(self, tp: DeviceMesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.copied = nn.Linear(WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.copied(self.norm(features))  # type: ignore[no-any-return]


def parallel(tp: DeviceMesh) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Replicate())}
    return parallelize_module(Parallel(), tp, plan)


def mesh_2d(nodes: str = "2x2", **options: Any) -> DeviceMesh:
    """Make a mesh of two "dp", which crosses between nodes, and whose groups have these options."""
    default = isthmus.Options(nodes=nodes, min_elements=0, **options)
    return init_device_mesh(
        "cpu",
        (2, dist.get_world_size() // 2),
        mesh_dim_names=("dp", "tp"),
        backend_override={0: ("isthmus", default), 1: ("isthmus", default)},
    )


def unflattened_mesh(nodes: str, **options: Any) -> DeviceMesh:
    """Make the same mesh from one of all ranks, as torchtitan does: the root does not show "tp"."""
    default = ("isthmus", isthmus.Options(nodes=nodes, min_elements=0, **options))
    world = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("world",))
    sizes = (2, dist.get_world_size() // 2)
    return world._unflatten(0, sizes, ("dp", "tp"), backend_override=dict.fromkeys(("dp", "tp"), default))


def fsdp1_in_two_units(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    policy = ModuleWrapPolicy({nn.LayerNorm, nn.Linear})
    return FullyShardedDataParallel(
        model, device_mesh=mesh["dp"], device_id=torch.device("cpu"), auto_wrap_policy=policy, use_orig_params=True
    )


def fsdp1_in_one_unit(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return FullyShardedDataParallel(model, device_mesh=mesh["dp"], device_id=torch.device("cpu"), use_orig_params=True)


def fsdp2_in_two_units(model: Any, mesh: DeviceMesh) -> nn.Module:
    fully_shard([model.norm, model.copied], mesh=mesh["dp"])
    return fsdp2_in_one_unit(model, mesh)


def fsdp2_in_one_unit(model: Any, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=mesh["dp"])


def ddp_of_parts(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    _pre_dp_module_transform(model)
    return DistributedDataParallel(model, process_group=mesh.get_group("dp"))


def prepared(wrap: Callable[[nn.Module, DeviceMesh], nn.Module]) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    return lambda model, mesh: isthmus.prepare(wrap(model, mesh))


def fsdp2_marked(model: Any, mesh: DeviceMesh) -> nn.Module:
    fsdp2_in_one_unit(model, mesh)
    model.mark()
    return model  # type: ignore[no-any-return]


def ddp_of_mesh(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh["dp"])


def drift_of_copies(model: nn.Module, mesh: DeviceMesh) -> float:
    """Train; return how far the copies on the ranks of "tp" are from each other at most."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        data_rank = mesh["dp"].get_local_rank()
        inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + data_rank))
        (model(inputs) - inputs.flip(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    copies = []
    is_fsdp1 = isinstance(model, FullyShardedDataParallel)
    with FullyShardedDataParallel.summon_full_params(model) if is_fsdp1 else torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "copied" in name:
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                copies.append(whole.detach().flatten().clone())
    everyones: list[Any] = [None] * mesh["tp"].size()
    dist.all_gather_object(everyones, torch.cat(copies), group=mesh.get_group("tp"))
    return float((torch.stack(everyones) - everyones[0]).abs().max())


def check_copies(
    wrap: Callable[[nn.Module, DeviceMesh], nn.Module],
    exact: str | None = None,
    make: Callable[[DeviceMesh], nn.Module] = parallel,
    make_mesh: Callable[..., DeviceMesh] = mesh_2d,
    **options: Any,
) -> None:
    mesh = make_mesh(**options)
    drift = drift_of_copies(wrap(make(mesh["tp"]), mesh), mesh)
    statistics = isthmus.stats(mesh.get_group("dp"))
    assert drift == 0, drift
    if exact is None:
        assert statistics["compressed_calls"] > 0, statistics["exact_calls"]
    else:
        assert statistics["exact_calls"].get(exact, 0) >= STEPS, statistics["exact_calls"]


@table
def copies_agree_under_fsdp1() -> None:
    check_copies(fsdp1_in_two_units)
    check_copies(prepared(fsdp1_in_two_units))


@table
def copies_beside_parts_are_exact_under_fsdp1() -> None:
    check_copies(fsdp1_in_one_unit, REASONS.MIXED_COPIES.text)
    check_copies(prepared(fsdp1_in_one_unit), REASONS.MIXED_COPIES.text, **KEEPING["tagc"])


@table
def copies_agree_under_fsdp2() -> None:
    check_copies(fsdp2_in_two_units)
    check_copies(prepared(fsdp2_in_two_units), **KEEPING["tagc"])
    check_copies(prepared(fsdp2_in_one_unit), REASONS.MIXED_COPIES.text)


@table
def copies_agree_under_ddp() -> None:
    check_copies(ddp_of_parts, REASONS.MAY_HOLD_COPIES.text, gradients="backward")
    check_copies(prepared(ddp_of_parts), REASONS.MIXED_COPIES.text)


@table
def copies_beside_marked_parts_are_exact() -> None:
    for wrap in (fsdp2_marked, fsdp1_in_one_unit, prepared(fsdp1_in_one_unit)):
        check_copies(wrap, REASONS.MIXED_COPIES.text, Marked)
    check_copies(prepared(ddp_of_mesh), REASONS.MIXED_COPIES.text, Marked)


@table_of_six
def copies_agree_where_their_groups_lie_on_nodes_alike() -> None:
    for wrap in (fsdp2_in_one_unit, fsdp1_in_one_unit, prepared(ddp_of_mesh)):
        check_copies(wrap, None, Copied, nodes="0,1,2|3,4,5")


def reason_or_one_tier(reason: Any) -> str:
    """Ranks 0 and 3 reduce on one node what 1 and 4, 2 and 5 reduce between two."""
    return str((REASONS.ONE_TIER if dist.get_rank() % 3 == 0 else reason).text)


@table_of_six
def copies_are_exact_where_one_group_is_inside_a_node() -> None:
    exact = reason_or_one_tier(REASONS.OTHER_NODES)
    for wrap in (fsdp2_in_one_unit, fsdp1_in_one_unit, prepared(ddp_of_mesh)):
        check_copies(wrap, exact, Copied, nodes="0,1,2,3|4,5")
    check_copies(fsdp2_in_one_unit, exact, Copied, unflattened_mesh, nodes="0,1,2,3|4,5")


def fsdp2_of_group(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=DeviceMesh.from_group(mesh.get_group("dp"), "cpu"))


def fsdp1_of_group(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    group, cpu = mesh.get_group("dp"), torch.device("cpu")
    return FullyShardedDataParallel(model, process_group=group, device_id=cpu, use_orig_params=True)


def ddp_of_group(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, process_group=mesh.get_group("dp"))


@table_of_six
def copies_are_exact_where_nothing_tells_which_groups_reduce_them() -> None:
    exact = reason_or_one_tier(REASONS.UNKNOWN_COPIES)
    for wrap in (fsdp2_of_group, fsdp1_of_group, prepared(ddp_of_group)):
        check_copies(wrap, exact, Copied, nodes="0,1,2,3|4,5")
    assert ("init_device_mesh" in isthmus.summary()) == (dist.get_rank() % 3 != 0)


test_copies_in_groups_on_other_nodes = table_of_six.in_world(world_size=6)


test_copies = table.in_world()
