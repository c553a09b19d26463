"""Finds the nodes of other groups' ranks: each rank leaves a note in the job's store when it makes a group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import torch.distributed as dist

from isthmus import native
from isthmus.group.nodes import node_map
from isthmus.group.nodes.node_map import Surroundings
from isthmus.torch_private.groups import job_store


def leave_note(global_rank: int, surroundings: Surroundings, nodes_option: str) -> None:
    """Let the other ranks of the job know on which node this one is, as groups with this option `nodes` see it.

    Called while a group is made. The group of all ranks needs no notes: nobody is outside of it.
    """
    if dist.is_initialized():
        note = json.dumps(asdict(surroundings))
        job_store().set(_key(global_rank, nodes_option), note)


def nodes_of(ranks: Sequence[int], nodes_option: str) -> list[int]:
    """Return the node map of a group of these ranks with this option `nodes`.

    Waits for ranks that have not made the group yet; raises DistStoreError after the timeout of the job's store.
    """
    store = job_store()
    notes = store.multi_get([_key(rank, nodes_option) for rank in ranks])
    surroundings = [Surroundings.from_json(json.loads(note)) for note in notes]
    return node_map.choose(ranks, surroundings, dist.get_world_size(), native.load().describe_nodes).node_of_rank


def _key(global_rank: int, nodes_option: str) -> str:
    return f"isthmus/nodes/{nodes_option}/{global_rank}"
