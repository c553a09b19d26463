"""The process groups of an arm, and the mesh that its model is sharded over."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from isthmus.benchmarks.common.isthmus_group import IsthmusGroup, new_group
from isthmus.benchmarks.common.place import Place
from isthmus.benchmarks.training.config import TrainingConfig


@dataclass(frozen=True)
class ArmGroups:
    """The groups of an arm."""

    mesh: DeviceMesh
    #: The groups of the mesh, if their backend is Isthmus.
    isthmus: list[IsthmusGroup]

    @property
    def options(self) -> dict[str, Any] | None:
        """Options of Isthmus, the same for all groups of the arm."""
        return self.isthmus[0].options if self.isthmus else None


def make_groups(
    options: Mapping[str, str] | None, config: TrainingConfig, place: Place, hybrid_sharded: bool = False
) -> ArmGroups:
    """Make an arm's groups: one over all ranks, or for HSDP those along the rails and those within the nodes.

    options: of Isthmus; None for the ordinary backend alone.

    Collective. They are what `init_device_mesh` makes, but for options and timeout of their own.
    """
    ranks = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node)
    ranks_of_dimensions = [ranks.T.tolist(), ranks.tolist()] if hybrid_sharded else [None]
    timeout = timedelta(seconds=config.timeout_s)
    isthmus_groups = []
    if options is not None:
        isthmus_groups = [IsthmusGroup(options, timeout, groups) for groups in ranks_of_dimensions]
        groups = [group.group for group in isthmus_groups]
    else:
        groups = [new_group(place.backend, timeout, groups) for groups in ranks_of_dimensions]
    if not hybrid_sharded:
        return ArmGroups(DeviceMesh.from_group(groups[0], place.device), isthmus_groups)
    mesh = DeviceMesh.from_group(groups, place.device, mesh=ranks, mesh_dim_names=("replicate", "shard"))
    return ArmGroups(mesh, isthmus_groups)
