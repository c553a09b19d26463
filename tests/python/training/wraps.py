"""Ways to train a model that several files of tests take: FSDP, HSDP, DDP, SimpleFSDP."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from support.families import WORLD_SIZE, Block, Family, Training


def fsdp2(model: Any, **settings: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def hsdp(model: nn.Module) -> nn.Module:
    return fsdp2(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def fsdp1(model: nn.Module, **settings: Any) -> nn.Module:
    settings = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": torch.device("cpu"), **settings}
    return FullyShardedDataParallel(model, **settings)


def accumulate_without_sync(training: Training, number: int) -> torch.Tensor:
    """Two micro-batches, of which FSDP1 and DDP do not reduce the first."""
    with training.model.no_sync():
        training.step(number)
    return training.step(number + 1)


def backward_and_finalize(training: Training, number: int) -> torch.Tensor:
    loss = training.step(number)
    training.model.finalize_backward()
    return loss


# --- DDP ---


def ddp(model: nn.Module, **settings: Any) -> nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=0.04, **settings)


def ddp_family(wrap: Callable[[nn.Module], nn.Module] = ddp, **settings: Any) -> Family:
    """The first three passes are exact."""
    return Family(**{"wrap": wrap, "labelled": False, "modes": ("prepared",), "gathers": False, "steps": 5, **settings})


# --- SimpleFSDP ---


class Gather(nn.Module):
    """Makes a sharded parameter whole for the forward pass; in the backward pass its gradient is reduce-scattered."""

    def forward(self, parameter: Any) -> torch.Tensor:
        whole = parameter.redistribute(placements=[Replicate()])
        local: torch.Tensor = whole.to_local(grad_placements=[Partial("avg")])
        return local


def simple_fsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            for name, parameter in list(module.named_parameters(recurse=False)):
                sharded = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
                module.register_parameter(name, sharded)
                parametrize.register_parametrization(module, name, Gather(), unsafe=True)
    return model
