"""Registers the backend with torch and constructs it: first the ranks agree, then each makes the tiers."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from isthmus.base import native
from isthmus.base.backends import beside, has_two_tiers, isthmus_backend, options_without_effect
from isthmus.base.job import warn_once
from isthmus.group import mpi_tier, process
from isthmus.group.agreement import agree, leave_note, place
from isthmus.group.cuda import bound_device, connections_warning, devices
from isthmus.group.gloo import GroupRanks, gloo_backend
from isthmus.group.nodes.launchers import rendezvous
from isthmus.group.nodes.node_map import BEYOND, Nodes, tiers_of, told_by_ranks
from isthmus.group.rails import GpuPlace, machine_in_words, misplacements
from isthmus.torch_private.groups import backends_by_device, make_nccl, set_timeout, timeout_of

if TYPE_CHECKING:
    from isthmus import _C

logger = logging.getLogger("isthmus")

NAME = "isthmus"
_LAUNCHED = f"{NAME}://"


def register() -> None:
    """Make the backend and the address isthmus:// known to torch.distributed. Safe to call again."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create_backend, extended_api=True, devices=devices())
    register_rendezvous_handler(NAME, _meet_as_launched)  # type: ignore[no-untyped-call]


def _meet_as_launched(url: str, **settings: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield store, rank and number of ranks of the world that a launcher started. Called by torch for isthmus://.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as env:// reads them. ValueError: there is no such world.
    """
    if url != _LAUNCHED:
        raise ValueError(f"{url}: {_LAUNCHED} takes rank and world_size from the launcher: leave them out")
    os.environ.update(rendezvous(os.environ, f"init_method={_LAUNCHED}", "srun --ntasks-per-node 8 python train.py"))
    yield from torch_rendezvous("env://", **settings)


def _create_backend(request: Any, options: Any) -> _C.Backend:
    """Construct the backend of one group. Called by torch."""
    # Torch gives no ranks for the default group, nor for one that comes by a store of its own beside it.
    global_ranks = list(request.global_ranks_in_group)
    return create(
        GroupRanks(
            store=request.store,
            name=request.group_id,
            rank=request.group_rank,
            global_ranks=global_ranks or list(range(request.group_size)),
            world_size=dist.get_world_size() if global_ranks else request.group_size,
            timeout=request.timeout,
            is_of_job=bool(global_ranks),
            beyond_job=not global_ranks and dist.is_initialized(),
            device=bound_device(getattr(request, "process_group", None)),
            beside=beside.get(),
            reconfigures=getattr(request, "enable_reconfigure", False),  # torch 2.15
        ),
        options if options is not None else _default_group_options(),
    )


def _create_split(store: Store, rank: int, size: int, options: _C.Options, beyond_job: bool) -> _C.Backend:
    """Construct a backend over some ranks of another. Called by Backend.split."""
    # The clone has its own connection: torch may still use the store that it gave. Torch's stubs lack clone().
    store = store.clone()  # type: ignore[attr-defined]
    return create(
        GroupRanks(
            store=store,
            name=options.group_name,
            rank=rank,
            global_ranks=list(range(size)) if beyond_job else list(options.global_ranks_in_group),
            world_size=size if beyond_job else dist.get_world_size(),
            timeout=timeout_of(options),
            beyond_job=beyond_job,
            device=bound_device(None),
        ),
        options,
    )


def _default_group_options() -> _C.Options | None:
    """Return the default group's options, for a group that was given none."""
    world = dist.group.WORLD
    if world is None or NAME not in dist.get_backend_config(world):
        return None
    backend = isthmus_backend(world)
    return None if backend is None else copy.deepcopy(backend.options)


def create(group: GroupRanks, given_options: Any) -> _C.Backend:
    """Construct the backend of one group."""
    group, options, introductions = agree(group, given_options)
    if group.node is None and not group.beyond_job:
        leave_note(group.global_ranks[group.rank], introductions[group.rank].surroundings, options.nodes)
    process.set_up(options, group.rank, _create_split)
    for sentence in options_without_effect(options) if group.rank == 0 else []:
        warn_once(sentence)
    set_timeout(options, group.timeout)
    options.global_ranks_in_group = list(group.global_ranks)
    nodes = place(group, introductions)
    _log_nodes(group, nodes, [introduction.place for introduction in introductions])
    gpus = [introduction.gpu for introduction in introductions]
    no_cuda = told_by_ranks(group.global_ranks, [gpu.missing for gpu in gpus])  # equal on all ranks
    if no_cuda and group.rank == 0 and not all(gpu.missing for gpu in gpus):
        logger.warning("group of %d ranks: for CPU tensors alone: %s", group.size, no_cuda)
    if not no_cuda and group.rank == 0:
        warn_once(connections_warning())
    return _assemble(group, options, nodes, no_cuda)


def _assemble(group: GroupRanks, options: _C.Options, nodes: Nodes, no_cuda: str) -> _C.Backend:
    node_of_rank = nodes.node_of_rank
    tiers = inter = nccl = None
    world = _borrowed_world(group, "cpu")
    if world is None or has_two_tiers(node_of_rank):
        tiers = gloo_backend(group)
        world = world or tiers
    if has_two_tiers(node_of_rank) and options.uses_mpi:
        _, rail = tiers_of(group.rank, node_of_rank)
        inter = mpi_tier.make_tier([group.global_ranks[rank] for rank in rail], group.timeout)
    if not no_cuda:
        nccl = _borrowed_world(group, "cuda") or make_nccl(
            PrefixStore("nccl", group.store), group.rank, group.global_ranks, group.timeout, group.name, group.device
        )
    backend: _C.Backend = native.load().Backend(
        # Members that come and go are watched by whoever lets them: reports would only delay the next quorum.
        store=PrefixStore("faults", group.store) if group.node is None else None,
        rank=group.rank,
        size=group.size,
        options=options,
        node_of_rank=node_of_rank,
        node_map_source=nodes.origin,
        world=world,
        tiers=tiers,
        inter=inter,
        cuda_world=nccl,
        cuda_store=PrefixStore("tiers", group.store),
        no_cuda=no_cuda,
        covers_job=group.size == group.world_size and not group.beyond_job,
        beyond_job=group.beyond_job,
        owns_worlds=group.beside is None,
    )
    return backend


def _borrowed_world(group: GroupRanks, device: str) -> Any:
    """Return the backend of the group that this one becomes the companion of; None if it becomes none's.

    A group without one for this kind of device gives another one, which refuses such tensors.
    """
    if group.beside is None:
        return None
    backends = backends_by_device(group.beside)
    return backends.get(device, next(iter(backends.values())))


def _log_nodes(group: GroupRanks, nodes: Nodes, places: list[GpuPlace]) -> None:
    """Log how the ranks are placed, what the placement is based on, and what the nodes have."""
    if group.rank != 0:
        return
    if group.beyond_job:
        text = f"group of {group.size} ranks: {BEYOND}: everything goes to the world backend, uncompressed"
        warn_once(text, BEYOND)
        return
    text = f"{native.load().describe_nodes(nodes.node_of_rank)}, by {nodes.origin}"
    two_tier = has_two_tiers(nodes.node_of_rank)
    if not two_tier:
        text += ": everything goes to the world backend, uncompressed"
    text += machine_in_words(nodes.node_of_rank, places)
    # A subgroup inside a node is normal, and the group of all ranks has reported misplacements.
    worth_a_look = group.size == group.world_size and (nodes.doubt or not two_tier)
    logger.log(logging.WARNING if worth_a_look else logging.INFO, "group of %d ranks: %s", group.size, text)
    if two_tier:
        warn_once(misplacements(nodes.node_of_rank, places))
