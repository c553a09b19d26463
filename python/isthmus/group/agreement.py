"""Exchanges between ranks before they make a group: whether they agree, and where they are."""

from __future__ import annotations

import copy
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from isthmus.base import native
from isthmus.base.backends import agreed_texts, has_two_tiers
from isthmus.base.error_reports import on_all
from isthmus.base.job import this_job
from isthmus.group import mpi_tier
from isthmus.group.cuda import Gpu, ask_for_connections, find_gpu
from isthmus.group.gloo import GroupRanks
from isthmus.group.meeting import exchange, meet
from isthmus.group.nodes import node_map
from isthmus.group.nodes.islands import ISLANDS, find_island, instead
from isthmus.group.nodes.node_map import Nodes, Surroundings, different_options, told_by_ranks
from isthmus.group.rails import GpuPlace, find_gpu_place
from isthmus.torch_private.groups import job_store

if TYPE_CHECKING:
    from isthmus import _C

# How long a rank that reports an error stays, so that the others can read it: it may host the store.
ERROR_READ_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True)
class Introduction:
    """Facts about a rank, for the other ranks, before the group is made."""

    surroundings: Surroundings = field(default_factory=Surroundings)
    options: dict[str, str] | None = None
    gpu: Gpu = field(default_factory=Gpu)
    place: GpuPlace = field(default_factory=GpuPlace)
    error: str = ""
    #: Why it has no place in its job.
    misplaced: str = ""
    beyond_job: bool = False
    #: The first rank's, which nobody else has, names their meeting.
    token: str = ""

    @classmethod
    def from_text(cls, text: bytes) -> Introduction:
        """Undo `json.dumps`."""
        values = json.loads(text)
        surroundings = Surroundings.from_json(values["surroundings"])
        parts = {"surroundings": surroundings, "gpu": Gpu(**values["gpu"]), "place": GpuPlace(**values["place"])}
        return cls(**values | parts)


def agree(group: GroupRanks, given_options: Any) -> tuple[GroupRanks, _C.Options, list[Introduction]]:
    """Return the group, its store under a prefix of its own, this rank's options and each rank's introduction.

    The options fit the others'. Raises alike on all ranks.
    """
    options, own = _introduce(group, given_options)
    text = json.dumps(own, default=vars)
    arguments = (group.global_ranks, group.rank, text, group.timeout, group.interrupt)
    job = this_job()
    try:
        if job.meeting and group.is_of_job and group.name not in job.group_names:
            # In that meeting nobody has written to this group's store before.
            store: Store = PrefixStore(job.meeting, group.store)
            texts = exchange(store, *arguments)
        else:
            store, texts = meet(group.store, *arguments)
    except dist.DistStoreError as error:
        raise dist.DistStoreError(f"isthmus: {error} to make the group") from None
    introduction_of = {text: Introduction.from_text(text) for text in set(texts)}
    introductions = [introduction_of[text] for text in texts]
    # A member without a default group takes this one for that.
    group = replace(group, store=store, beyond_job=any(introduction.beyond_job for introduction in introductions))
    complaint = _complaint(group, introductions)
    if options is None or complaint:
        _leave_together(group)
        try:
            error_type = native.load().OptionError
        except ImportError:
            error_type = ImportError
        raise on_all(error_type(f"isthmus: {complaint}"), group.rank)
    if group.size == group.world_size and not group.beyond_job and group.node is None:
        job.meeting = introductions[0].token
    job.group_names.add(group.name)
    return group, options, introductions


def _introduce(group: GroupRanks, given_options: Any) -> tuple[_C.Options | None, Introduction]:
    """Read this rank's options and node. Sends errors in them to the other ranks and raises none."""
    try:
        core = native.load()
        if given_options is None:
            given_options = core.Options()
        if not isinstance(given_options, core.Options):
            raise TypeError(f"pg_options: expected isthmus.Options, got {type(given_options).__name__}")
        if group.reconfigures or getattr(given_options, "enable_reconfigure", False):  # torch 2.15
            raise ValueError(
                "enable_reconfigure=True: expected False: no group of Isthmus is reconfigured; where members come and "
                "go, use isthmus.torchft.ProcessGroupIsthmus"
            )
        options: _C.Options = copy.deepcopy(given_options)
        texts = agreed_texts(options)
        ask_for_connections()
        token = uuid4().hex if group.rank == 0 else ""
        gpu = find_gpu(group.device)
        introduction = Introduction(options=texts, gpu=gpu, beyond_job=group.beyond_job, token=token)
    except Exception as error:
        return None, Introduction(error=str(error))
    if group.beyond_job:
        return options, introduction
    bus_id = introduction.gpu.bus_id
    is_whole_job = group.size == group.world_size > 1 and group.node is None
    try:
        place = find_gpu_place(bus_id) if is_whole_job and bus_id else GpuPlace()
        surroundings = _find_surroundings(group, options, introduction.gpu)
        return options, replace(introduction, surroundings=surroundings, place=place)
    except Exception as error:
        return options, replace(introduction, misplaced=str(error))


def _find_surroundings(group: GroupRanks, options: _C.Options, gpu: Gpu) -> Surroundings:
    """Describe this rank's node in its job, and join the job's MPI if the options want it."""
    global_rank = group.global_ranks[group.rank]
    if options.uses_mpi:
        mpi_tier.join(global_rank, group.world_size)
    if group.node is not None:
        return Surroundings(option=group.node(), option_source="torchft")
    by_variable = os.environ.get(node_map.VARIABLE) == options.nodes
    source = node_map.VARIABLE if by_variable else node_map.OPTION
    if options.nodes == ISLANDS:
        island, by = find_island(gpu.bus_id, gpu.is_slice)
        return Surroundings(option=island, option_source=f"{source} ({ISLANDS} that {by} joins)")
    if options.nodes:
        node = native.load().parse_nodes(options.nodes, group.world_size)[global_rank]
        return Surroundings(option=f"node {node}", option_source=source)
    surroundings = node_map.look_around(os.environ, group.world_size, gpu.bus_id or None)
    if group.size < group.world_size and this_job().launcher_contradicts_itself:
        return replace(surroundings, claim=None)  # the claims of a few members may agree by chance
    return surroundings


def place(group: GroupRanks, introductions: Sequence[Introduction]) -> Nodes:
    """Return the group's node map, and remember for its subgroups whether the launcher's variables can be trusted.

    A group beyond the job counts as one node. Members that come and go count as a node each where nodes are uneven.
    """
    if group.beyond_job:
        return Nodes([0] * group.size, node_map.BEYOND)
    surroundings = [introduction.surroundings for introduction in introductions]
    describe = native.load().describe_nodes
    nodes = node_map.choose(group.global_ranks, surroundings, group.world_size, describe)
    if ISLANDS in nodes.source and group.size == group.world_size:
        nodes = replace(nodes, doubt=instead(list(Counter(nodes.node_of_rank).values())))
    if group.node is not None and len(set(nodes.node_of_rank)) > 1 and not has_two_tiers(nodes.node_of_rank):
        doubt = "they would be uneven, so that each member counts as one"
        nodes = replace(nodes, node_of_rank=list(range(group.size)), doubt=doubt)
    if group.size == group.world_size and not surroundings[0].option:
        this_job().launcher_contradicts_itself = nodes.source == node_map.MACHINE and bool(nodes.doubt)
    return nodes


def _complaint(group: GroupRanks, introductions: Sequence[Introduction]) -> str:
    """Return why these ranks cannot form a group, "" if they can; the same text on every rank."""
    ranks = group.global_ranks
    if group.beyond_job:  # nothing is compressed there, and its ranks may have the variables of several jobs
        return told_by_ranks(ranks, [introduction.error for introduction in introductions])
    errors = told_by_ranks(ranks, [introduction.error or introduction.misplaced for introduction in introductions])
    return errors or different_options(ranks, [introduction.options or {} for introduction in introductions])


def _leave_together(group: GroupRanks) -> None:
    """Wait until every rank has read the introductions: the first rank to leave may host the store."""
    try:
        if group.store.add("read", 1) == group.size:
            group.store.set("all_read", "")
        group.store.wait(["all_read"], ERROR_READ_TIMEOUT)
    except dist.DistError:
        pass  # the store's host or a rank is gone: do not wait for it
    if group.rank == 0:
        time.sleep(0.5)  # rank 0 is likely to host the store: let its answers reach the others


# --- Notes for the ranks of other groups ---


def leave_note(global_rank: int, surroundings: Surroundings, nodes_option: str) -> None:
    """Let the other ranks of the job know on which node this one is, as groups with this option `nodes` see it.

    Called while a group is made. The group of all ranks needs no notes: nobody is outside of it.
    """
    note = json.dumps(surroundings, default=vars)
    notes = this_job().notes
    if dist.is_initialized() and notes.get(nodes_option) != note:
        job_store().set(f"isthmus/nodes/{nodes_option}/{global_rank}", note)
        notes[nodes_option] = note


def nodes_of(ranks: Sequence[int], nodes_option: str) -> list[int]:
    """Return the node map of a group of these ranks with this option `nodes`.

    Waits for ranks that have not made the group yet; raises DistStoreError after the timeout of the job's store.
    """
    notes = job_store().multi_get([f"isthmus/nodes/{nodes_option}/{rank}" for rank in ranks])
    surroundings = [Surroundings.from_json(json.loads(note)) for note in notes]
    return node_map.choose(ranks, surroundings, dist.get_world_size(), native.load().describe_nodes).node_of_rank
