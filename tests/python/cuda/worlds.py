"""When tests of the backend's half for CUDA run."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from isthmus._build_info import CUDA
from support import fake_gpu

reason = fake_gpu.why_not() or ("" if CUDA else "isthmus was built without CUDA")
needs_fake_gpu = pytest.mark.skipif(bool(reason), reason=reason)


def on_fake_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that has ranks with the fake GPU."""
    return pytest.mark.processes(needs_fake_gpu(test))


def sharded(
    shape: tuple[int, ...],
    *,
    units: int = 4,
    features: int = 64,
    param_dtype: torch.dtype = torch.bfloat16,
    reduce_dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return a model of FSDP2 with a unit for each layer. shape: of its mesh; of two dimensions it is HSDP."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(features, features) for _ in range(units))).cuda()
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def training_step(model: nn.Module, features: int) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        loss = model(torch.ones(2, features, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
