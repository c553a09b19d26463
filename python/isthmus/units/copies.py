"""Keeps units exact whose copies on other ranks must get the same bits, as under tensor parallelism.

Every rank along such a dimension of the mesh reduces its own copy of a norm, beside its own part of a linear layer.
What a lossy codec changes in a copy depends on what is beside it in the unit, and on where the ranks of its group are.
So a unit is exact if it mixes copies with parts of split parameters, or if the groups that reduce its copies are
placed differently on nodes. Only a mesh tells which ranks hold the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.backends import isthmus_backend
from isthmus.group.agreement import nodes_of
from isthmus.torch_private import models as private
from isthmus.torch_private.models import ParamGroup
from isthmus.units.models import shard_group

if TYPE_CHECKING:
    from isthmus import _C


def why_fsdp2_is_exact(group: ParamGroup) -> _C.Reason | None:
    """Return why copies keep FSDP2's unit exact, None if they do not."""
    tensors = [param.tensor for param in private.parameters_of(group)]
    split = {_is_split_elsewhere(group, tensor) or _is_marked_split(tensor) for tensor in tensors}
    return _why_exact(split, (shard_group(group), private.replicate_group(group)), private.mesh_of(group))


_why_flat_is_exact: MutableMapping[torch.Tensor, _C.Reason | None] = WeakIdKeyDictionary()


def why_fsdp1_is_exact(flat_parameter: Any, module: Any) -> _C.Reason | None:
    """Return why copies keep FSDP1's flat parameter exact, None if they do not. module: FSDP1's module or its state."""
    if flat_parameter not in _why_flat_is_exact:
        split = {_splits(spec) or _is_marked_split(made) for spec, made in private.parameters_in(flat_parameter)}
        groups = (module.process_group, private.hybrid_group(module))
        _why_flat_is_exact[flat_parameter] = _why_exact(split, groups, private.fsdp1_mesh(module))
    return _why_flat_is_exact[flat_parameter]


def why_bucket_is_exact(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup, mesh: Any) -> _C.Reason | None:
    """Return why copies keep a bucket of DDP exact, None if they do not.

    Recognises the tensors that torch makes from DTensors for DDP, and those that Megatron marks as split.
    """
    split = {_splits(private.dtensor_spec(p)) or _is_marked_split(p) for p in parameters}
    return _why_exact(split, (group,), mesh)


def _why_exact(is_split: set[bool], groups: Iterable[dist.ProcessGroup | None], mesh: Any) -> _C.Reason | None:
    """Return why. is_split: the values that its parameters have. mesh: of the ranks that reduce it, if there is one."""
    reasons = native.load().Reason
    if len(is_split) > 1:
        reason: _C.Reason = reasons.MIXED_COPIES
        return reason
    if True in is_split or mesh is None:
        return None
    reduced_over = [group for group in groups if group is not None and isthmus_backend(group) is not None]
    return None if all(_is_alike_everywhere(group, mesh) for group in reduced_over) else reasons.OTHER_NODES


def _is_alike_everywhere(group: dist.ProcessGroup, mesh: Any) -> bool:
    others = list(_groups_of_copies(dist.get_process_group_ranks(group), mesh))
    if not others:
        return True
    backend = isthmus_backend(group)
    assert backend is not None
    own = list(backend.node_of_rank)
    return all(nodes_of(ranks, backend.options.nodes) == own for ranks in others)


def _groups_of_copies(ranks: list[int], mesh: Any) -> Iterator[list[int]]:
    """Yield the groups that may reduce copies: they lie beside `ranks` in dimensions outside `mesh`."""
    root = private.root_mesh(mesh).mesh
    rank_at = dict(zip(itertools.product(*map(range, root.shape)), root.flatten().tolist(), strict=True))
    place_of = {rank: place for place, rank in rank_at.items()}
    inside = [place_of[rank] for rank in mesh.mesh.flatten().tolist()]
    outside = [dim for dim in range(root.ndim) if len({place[dim] for place in inside}) == 1]
    for offset in itertools.product(*(range(root.shape[dim]) for dim in outside)):
        moved = dict(zip(outside, offset, strict=True))
        places = [tuple(moved.get(dim, at) for dim, at in enumerate(place_of[rank])) for rank in ranks]
        if (found := [rank_at[place] for place in places]) != ranks:
            yield found


def _splits(spec: Any) -> bool:
    return spec is not None and not all(placement.is_replicate() for placement in spec.placements)


def _is_marked_split(parameter: Any) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _is_split_elsewhere(group: ParamGroup, sharded: Any) -> bool:
    groups = [found for found in (shard_group(group), private.replicate_group(group)) if found is not None]
    own_ranks = {rank for found in groups for rank in dist.get_process_group_ranks(found)}
    return any(
        not placement.is_replicate()
        and not own_ranks.issuperset(dist.get_process_group_ranks(sharded.device_mesh.get_group(dim)))
        for dim, placement in enumerate(sharded.placements)
    )
