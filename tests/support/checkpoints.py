"""Models over groups of their own, and the state of their units."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus.base import backends as _backends
from isthmus.base import native as _native
from isthmus.model import models as _models
from support.tested_codecs import Options

WIDTH = 24
# Small units, of which little is sent: residuals are large, and differ in all elements.
SETTINGS: dict[str, Options] = {
    "tagc": {"codec": "tagc", "sparsity": 0.75, "ratio": 2},
    "default": {},
    "none": {"codec": "none"},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.down(torch.tanh(self.up(features)))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(WIDTH, 7)  # 7 rows divide by no number of ranks

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            features = block(features)
        return self.out(features)  # type: ignore[no-any-return]


class OwnReduceScatter:
    """A user's for FSDP2, which calls the group's."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)


def options_of(codec: str = "tagc", **options: Any) -> isthmus.Options:
    return isthmus.Options(**{"nodes": "2x2", "min_elements": 0, **SETTINGS[codec], **options})


def group(codec: str = "tagc", **options: Any) -> dist.ProcessGroup:
    return dist.new_group(backend="isthmus", pg_options=options_of(codec, **options))


def fsdp2(mesh: DeviceMesh, model: nn.Module | None = None, **settings: Any) -> nn.Module:
    model = model or Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def mesh_of(process_group: dist.ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(process_group, "cpu")


def hsdp_mesh(nodes: str, codec: str = "tagc", **options: Any) -> DeviceMesh:
    """Return a mesh in which reduce-scatters stay within nodes, and all-reduces cross."""
    node_of_rank = torch.tensor(_native.load().parse_nodes(nodes, dist.get_world_size()))
    ranks = node_of_rank.argsort(stable=True).view(len(node_of_rank.unique()), -1)

    def own_of(enumeration: list[list[int]]) -> dist.ProcessGroup:
        groups = [
            dist.new_group(members, backend="isthmus", pg_options=options_of(codec, nodes=nodes, **options))
            for members in enumeration
        ]
        return next(found for found, members in zip(groups, enumeration, strict=True) if dist.get_rank() in members)

    replicas, shards = own_of(ranks.t().tolist()), own_of(ranks.tolist())
    return DeviceMesh.from_group([replicas, shards], "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard"))


def fsdp1(mesh: DeviceMesh, model: nn.Module | None = None, **settings: Any) -> nn.Module:
    return FullyShardedDataParallel(
        model or Model(),
        device_mesh=mesh,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        **settings,
    )


def ddp(process_group: dist.ProcessGroup, **settings: Any) -> nn.Module:
    return DistributedDataParallel(Model(), process_group=process_group, bucket_cap_mb=0.005, **settings)


BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
FLOAT16 = MixedPrecisionPolicy(reduce_dtype=torch.float16)
HYBRID = ShardingStrategy.HYBRID_SHARD

# How each kind of model is made on 2 nodes x 2 ranks.
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "fsdp2": lambda: fsdp2(mesh_of(group())),
    "fsdp2, default codec": lambda: fsdp2(mesh_of(group("default"))),
    "fsdp2 bfloat16, flat": lambda: fsdp2(
        mesh_of(group(tiers="flat")), mp_policy=BFLOAT16, reshard_after_forward=False
    ),
    "fsdp2 bfloat16 prepared": lambda: isthmus.prepare(fsdp2(mesh_of(group()), mp_policy=BFLOAT16), name="bfloat16"),
    "hsdp prepared": lambda: isthmus.prepare(fsdp2(hsdp_mesh("2x2")), name="hsdp"),
    "fsdp1 prepared": lambda: isthmus.prepare(fsdp1(mesh_of(group()), use_orig_params=True), name="fsdp1"),
    "fsdp1 hybrid prepared": lambda: isthmus.prepare(
        fsdp1(hsdp_mesh("2x2"), sharding_strategy=HYBRID, use_orig_params=True), name="hybrid"
    ),
    "ddp prepared, default codec": lambda: isthmus.prepare(
        ddp(group("default"), find_unused_parameters=True), name="ddp"
    ),
}


def batch(step: int, rank: int | None = None) -> torch.Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def backward(model: nn.Module, step: int) -> None:
    model(batch(step)).square().sum().backward()


def trained(model: nn.Module, passes: int = 2) -> nn.Module:
    """Return `model` after backward passes that left residuals."""
    for step in range(passes):
        backward(model, step)
        model.zero_grad()
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


def backends(model: nn.Module) -> list[Any]:
    return [found for found in map(_backends.isthmus_backend, _models.groups_of(model)) if found is not None]


def unit_states(model: nn.Module) -> list[dict[str, Any]]:
    return [unit for backend in backends(model) for unit in backend.unit_states()]


def steps_of(model: nn.Module) -> dict[str, int]:
    return {unit["name"]: unit["step"] for unit in unit_states(model)}


def exact_calls(process_group: dist.ProcessGroup) -> dict[str, int]:
    return dict(isthmus.stats(process_group)["exact_calls"])


def fingerprint(model: nn.Module) -> str:
    """Return a digest of this rank's weights and of the whole state of its units."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(local(parameter.detach()).float().numpy().tobytes())
    for unit in unit_states(model):
        for key, value in unit.items():
            digest.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else f"{key}={value}".encode())
    return digest.hexdigest()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor  # type: ignore[no-untyped-call, no-any-return]


@contextmanager
def seed(value: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(value)
        yield
