"""Models with residuals, in folders that all ranks know."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import isthmus
from support.checkpoints import fsdp2, group, mesh_of
from support.logs import logged


def model_on(nodes: str = "2x2", **options: Any) -> nn.Module:
    return fsdp2(mesh_of(group(nodes=nodes, **options)))


def shared_folder() -> Path:
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return Path(folder[0])


def saved(model: nn.Module, **more: Any) -> Path:
    folder = shared_folder()
    dcp.save({"isthmus": isthmus.state_dict(model), **more}, checkpoint_id=folder)
    return folder


@contextmanager
def warnings_of_rank_0() -> Iterator[list[str]]:
    """Collect what is logged; other ranks log nothing."""
    with logged() as messages:
        yield messages
    assert bool(messages) == (dist.get_rank() == 0)
