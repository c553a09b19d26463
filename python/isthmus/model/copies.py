"""Keeps units exact whose copies on other ranks must get the same bits, as under tensor parallelism.

Every rank along such a dimension of the mesh reduces its own copy of a norm, beside its own part of a linear layer.
What a lossy codec changes in a copy depends on what is beside it in the unit, and on where the ranks of its group are.
So a unit is exact if it mixes copies with parts of split parameters, or if the groups that reduce its copies are
placed differently on nodes. Only a mesh tells which ranks hold the copies: where it leaves out ranks of the job that
may hold some, nothing tells.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from isthmus.base import native
from isthmus.base.backends import backends_of
from isthmus.group.agreement import nodes_of
from isthmus.model.models import shard_group
from isthmus.torch_private import models as private
from isthmus.torch_private.models import ParamGroup

if TYPE_CHECKING:
    from isthmus import _C


def why_fsdp2_is_exact(group: ParamGroup) -> _C.Reason | None:
    """Return why copies keep FSDP2's unit exact, None if they do not."""
    groups = [found for found in (shard_group(group), private.replicate_group(group)) if found is not None]
    own_ranks = {rank for found in groups for rank in dist.get_process_group_ranks(found)}
    tensors = [param.tensor for param in private.parameters_of(group)]
    split = {_is_split_outside(own_ranks, tensor) or _is_marked_split(tensor) for tensor in tensors}
    return _why_exact(split, groups, private.mesh_of(group))


_why_flat_is_exact: weakref.WeakKeyDictionary[Any, _C.Reason | None] = weakref.WeakKeyDictionary()


def why_fsdp1_is_exact(handle: Any, module: Any) -> _C.Reason | None:
    """Return why copies keep FSDP1's flat parameter exact, None if they do not. module: FSDP1's module or its state."""
    if handle not in _why_flat_is_exact:
        parameters = private.parameters_in(private.flat_parameter_of(handle))
        split = {_splits(spec) or _is_marked_split(made) for spec, made in parameters}
        groups = (module.process_group, private.hybrid_group(module))
        _why_flat_is_exact[handle] = _why_exact(split, groups, private.fsdp1_mesh(module))
    return _why_flat_is_exact[handle]


def why_bucket_is_exact(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup, mesh: Any) -> _C.Reason | None:
    """Return why copies keep a bucket of DDP exact, None if they do not.

    Recognises the tensors that torch makes from DTensors for DDP, and those that Megatron marks as split.
    """
    split = {_splits(private.dtensor_spec(p)) or _is_marked_split(p) for p in parameters}
    return _why_exact(split, (group,), mesh)


def _why_exact(is_split: set[bool], groups: Iterable[dist.ProcessGroup | None], mesh: Any) -> _C.Reason | None:
    """Return why. is_split: the values that its parameters have. mesh: of the ranks that reduce it, if there is one."""
    Reason: Any = native.load().Reason
    reason: _C.Reason | None = None
    own = list(filter(None, groups))
    backends = backends_of(own) if True not in is_split else {}
    num_ranks = mesh.size() if mesh is not None else math.prod(group.size() for group in own)
    num_known = private.root_mesh(mesh).size() if mesh is not None else num_ranks
    if len(is_split) > 1:
        reason = Reason.MIXED_COPIES
    elif backends and dist.get_world_size() - num_known >= num_ranks:  # as many as reduce these may reduce copies
        reason = Reason.UNKNOWN_COPIES
    elif mesh is not None:
        for backend, group in backends.items():
            copies = _groups_of_copies(dist.get_process_group_ranks(group), mesh)
            if any(nodes_of(ranks, backend.options.nodes) != list(backend.node_of_rank) for ranks in copies):
                reason = Reason.OTHER_NODES
    return reason


def _groups_of_copies(ranks: list[int], mesh: Any) -> list[list[int]]:
    """Return the groups that may reduce copies: they lie in the meshes beside `mesh` as `ranks` do in it."""
    meshes = private.ranks_of_meshes_like(mesh)
    own = next(found for found in meshes if ranks[0] in found)
    indexes = [own.index(rank) for rank in ranks]
    return [[found[index] for index in indexes] for found in meshes if found is not own]


def _splits(spec: Any) -> bool:
    return spec is not None and not all(placement.is_replicate() for placement in spec.placements)


def _is_marked_split(parameter: Any) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _is_split_outside(ranks: set[int], sharded: Any) -> bool:
    return any(
        not placement.is_replicate()
        and not ranks.issuperset(dist.get_process_group_ranks(sharded.device_mesh.get_group(dim)))
        for dim, placement in enumerate(sharded.placements)
    )
