"""Registers the backend with torch and constructs it: agreement between the ranks first, then the tiers."""

from __future__ import annotations

import atexit
import copy
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from isthmus import native
from isthmus.backends import backends_of, has_two_tiers, isthmus_backend, options_without_effect
from isthmus.gloo import Group, fresh_prefix, gloo_tier
from isthmus.group import mpi_tier
from isthmus.group.cuda import (
    Gpu,
    NcclGroup,
    ask_for_connections,
    connections_warning,
    devices,
    find_gpu,
    make_parts,
    why_none,
)
from isthmus.group.meeting import wait_for_ranks
from isthmus.nodes import leave_note
from isthmus.told import log_to_stderr, on_all
from isthmus.topology import node_map
from isthmus.topology.node_map import Nodes, Surroundings, different_options, told_by_ranks
from isthmus.variables import unknown_variables

if TYPE_CHECKING:
    from isthmus import _C

logger = logging.getLogger("isthmus")

NAME = "isthmus"
# How long a rank that reports an error stays, so that the others can read it: it may host the store.
ERROR_READ_TIMEOUT = timedelta(seconds=10)


def register() -> None:
    """Make the backend known to torch.distributed. Safe to call again."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create_backend, extended_api=True, devices=devices())


@dataclass(frozen=True)
class Introduction:
    """Facts about a rank, for the other ranks, before the group is made."""

    surroundings: Surroundings = field(default_factory=Surroundings)
    options: dict[str, str] | None = None
    gpu: Gpu = field(default_factory=Gpu)
    error: str = ""

    def to_text(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: bytes) -> Introduction:
        """Undo `to_text`."""
        values = json.loads(text)
        parts = {"surroundings": Surroundings.from_json(values["surroundings"]), "gpu": Gpu(**values["gpu"])}
        return cls(**values | parts)


def _create_backend(request: Any, options: Any) -> _C.Backend:
    """Construct the backend of one group. Called by torch."""
    global_ranks = list(request.global_ranks_in_group)
    is_default = not global_ranks
    return _create(
        Group(
            store=fresh_prefix(request.store, request.group_rank),
            name=request.group_id,
            rank=request.group_rank,
            global_ranks=global_ranks or list(range(request.group_size)),
            world_size=request.group_size if is_default else dist.get_world_size(),
            timeout=request.timeout,
        ),
        options if options is not None or is_default else _default_group_options(),
    )


def _create_split(store: Store, rank: int, size: int, options: _C.Options) -> _C.Backend:
    """Construct a backend over some ranks of another. Called by Backend.split."""
    # A connection of its own: torch may still use that of the store it gave. Its stubs know no clone().
    store = store.clone()  # type: ignore[attr-defined]
    return _create(
        Group(
            store=fresh_prefix(store, rank),
            name=options.group_name,
            rank=rank,
            global_ranks=list(options.global_ranks_in_group) or list(range(size)),
            world_size=dist.get_world_size(),
            timeout=options._timeout,
        ),
        options,
    )


def _default_group_options() -> _C.Options | None:
    """Return the default group's options for a group that got none of its own."""
    world = dist.group.WORLD
    if world is None or NAME not in dist.get_backend_config(world):
        return None
    backend = isthmus_backend(world)
    return None if backend is None else copy.deepcopy(backend.options)


def _create(group: Group, given_options: Any) -> _C.Backend:
    options, introduction = _introduce(group, given_options)
    introductions = _exchange(group, introduction)
    complaint = _complaint(group, introductions)
    if options is None or complaint:
        _leave_together(group)
        raise on_all(_error_type(introductions)(f"isthmus: {complaint}"), group.rank)
    leave_note(group.global_ranks[group.rank], introduction.surroundings, options.nodes)
    _set_up_process(options, group)
    _warn_of_options_without_effect(group, options)
    options._timeout = group.timeout
    options.global_ranks_in_group = list(group.global_ranks)
    nodes = _place(group, introductions)
    _log_nodes(group, nodes)
    gpus = [introduction.gpu for introduction in introductions]
    no_cuda = why_none(group.global_ranks, gpus)
    if no_cuda and group.rank == 0 and not all(gpu.missing for gpu in gpus):
        logger.warning("group of %d ranks: for CPU tensors alone: %s", group.size, no_cuda)
    if not no_cuda and group.rank == 0:
        _warn_once(connections_warning())
    return _assemble(group, options, nodes, no_cuda)


def _introduce(group: Group, given_options: Any) -> tuple[_C.Options | None, Introduction]:
    """Read this rank's options and node. Errors in them are sent to the other ranks, not raised."""
    try:
        core = native.load()
        if given_options is None:
            given_options = core.Options()
        if not isinstance(given_options, core.Options):
            raise TypeError(f"pg_options: expected isthmus.Options, got {type(given_options).__name__}")
        options: _C.Options = copy.deepcopy(given_options)
        fields = {name: str(getattr(options, name)) for name, *_ in core.option_fields() if name != "log"}
        global_rank = group.global_ranks[group.rank]
        if options.inter_tier == "mpi":
            mpi_tier.join(global_rank, group.world_size)
        ask_for_connections()
        gpu = find_gpu()
        if options.nodes:
            node = core.parse_nodes(options.nodes, group.world_size)[global_rank]
            by_variable = os.environ.get(node_map.VARIABLE) == options.nodes
            source = node_map.VARIABLE if by_variable else node_map.OPTION
            surroundings = Surroundings(option=f"node {node}", option_source=source)
        else:
            surroundings = _look_around(group, gpu)
    except Exception as error:
        return None, Introduction(error=str(error))
    return options, Introduction(surroundings=surroundings, options=fields, gpu=gpu)


# Of the last group of all ranks that was not placed by an option.
_launcher_contradicts_itself = False


def _look_around(group: Group, gpu: Gpu) -> Surroundings:
    surroundings = node_map.look_around(os.environ, group.world_size, gpu.bus_id or None)
    if group.size < group.world_size and _launcher_contradicts_itself:
        return replace(surroundings, claim=None)  # the claims of a few members may agree by chance
    return surroundings


def _place(group: Group, introductions: Sequence[Introduction]) -> Nodes:
    """Return the group's node map, and remember for its subgroups whether the launcher's variables can be trusted."""
    global _launcher_contradicts_itself
    surroundings = [introduction.surroundings for introduction in introductions]
    describe = native.load().describe_nodes
    nodes = node_map.choose(group.global_ranks, surroundings, group.world_size, describe)
    if group.size == group.world_size and not surroundings[0].option:
        _launcher_contradicts_itself = nodes.source == node_map.MACHINE and bool(nodes.doubt)
    return nodes


def _exchange(group: Group, own: Introduction) -> list[Introduction]:
    keys = [f"introduction/{rank}" for rank in range(group.size)]
    group.store.set(keys[group.rank], own.to_text())
    try:
        wait_for_ranks(group.store, group.global_ranks, keys, group.global_ranks[group.rank], group.timeout)
    except dist.DistStoreError as error:
        raise dist.DistStoreError(f"isthmus: {error} to make the group") from None
    return [Introduction.from_text(group.store.get(key)) for key in keys]


def _complaint(group: Group, introductions: Sequence[Introduction]) -> str:
    """Return why these ranks cannot form a group, "" if they can; the same text on every rank."""
    ranks = group.global_ranks
    errors = told_by_ranks(ranks, [introduction.error for introduction in introductions])
    return errors or different_options(ranks, [introduction.options or {} for introduction in introductions])


def _error_type(introductions: Sequence[Introduction]) -> type[Exception]:
    try:
        error: type[Exception] = native.load().OptionError
    except ImportError:
        return ImportError
    return error


def _leave_together(group: Group) -> None:
    """Wait until every rank has read the introductions: the first rank to leave may host the store."""
    try:
        if group.store.add("read", 1) == group.size:
            group.store.set("all_read", "")
        group.store.wait(["all_read"], ERROR_READ_TIMEOUT)
    except dist.DistError:
        pass  # the host of the store, or a rank, is gone: nobody is left to wait for
    if group.rank == 0:
        time.sleep(0.5)  # the likely host of the store: its answers to the others are under way


def _assemble(group: Group, options: _C.Options, nodes: Nodes, no_cuda: str) -> _C.Backend:
    node_of_rank = nodes.node_of_rank
    own = node_of_rank[group.rank]
    node_ranks = [rank for rank in range(group.size) if node_of_rank[rank] == own]
    local_index = node_ranks.index(group.rank)
    by_node = [
        [rank for rank in range(group.size) if node_of_rank[rank] == node] for node in range(max(node_of_rank) + 1)
    ]
    two_tier = has_two_tiers(node_of_rank)
    rail = [ranks[local_index] for ranks in by_node] if two_tier else []

    intra = inter = flat = cuda = None
    world = gloo_tier(group, "world", list(range(group.size)))
    if two_tier:
        intra = gloo_tier(group, f"intra/{own}", node_ranks)
        inter = _inter_tier(group, options, local_index, rail)
        if options.tiers == "flat":
            flat = gloo_tier(group, "flat", list(range(group.size)))
    core = native.load()
    if not no_cuda:
        nccl = NcclGroup(group.store, group.name, group.rank, group.global_ranks, group.timeout)
        takes_host = two_tier and options.weights == "delta"
        host_inter = gloo_tier(group, f"host_inter/{local_index}", rail) if takes_host else None
        cuda = make_parts(nccl, core, own, node_ranks if two_tier else [], rail, host_inter)
    backend: _C.Backend = core.Backend(
        store=PrefixStore("faults", group.store),
        rank=group.rank,
        size=group.size,
        options=options,
        node_of_rank=node_of_rank,
        node_map_source=nodes.origin,
        world=world,
        intra=intra,
        inter=inter,
        flat=flat,
        cuda=cuda,
        no_cuda=no_cuda,
        covers_job=group.size == group.world_size,
    )
    return backend


def _inter_tier(group: Group, options: _C.Options, local_index: int, rail: list[int]) -> Any:
    if options.inter_tier == "mpi":
        return mpi_tier.make_tier([group.global_ranks[rank] for rank in rail], range(len(rail)), group.timeout)
    return gloo_tier(group, f"inter/{local_index}", rail)


def _log_nodes(group: Group, nodes: Nodes) -> None:
    """Log how the ranks are placed, and the source of that."""
    if group.rank != 0:
        return
    text = f"{native.load().describe_nodes(nodes.node_of_rank)}, by {nodes.origin}"
    two_tier = has_two_tiers(nodes.node_of_rank)
    if not two_tier:
        text += ": everything goes to the world backend, uncompressed"
    # A subgroup inside a node is normal, and doubts were reported when the group of all ranks was made.
    worth_a_look = group.size == group.world_size and (nodes.doubt or not two_tier)
    logger.log(logging.WARNING if worth_a_look else logging.INFO, "group of %d ranks: %s", group.size, text)


_warned_of: set[str] = set()


def _warn_of_options_without_effect(group: Group, options: _C.Options) -> None:
    """Warn of options that have no effect, once: later groups of a training have the same ones."""
    for sentence in options_without_effect(options) if group.rank == 0 else []:
        _warn_once(sentence)


def _warn_once(text: str, subject: str = "") -> None:
    """Warn, unless there was a warning of this subject (default: with this text)."""
    if text and (subject or text) not in _warned_of:
        _warned_of.add(subject or text)
        logger.warning("%s", text)


def _warn_on_first_rank(text: str) -> None:
    """Warn of what all ranks find alike. Called by the native module, on the thread that makes a collective's call."""
    if dist.get_rank() == 0:
        _warn_once(text)


def _tell_of_what_is_missing() -> None:
    """Called by the native module when the third step of a group begins."""
    if dist.get_rank() == 0:
        from isthmus.report.missing import missing

        for subject, text in missing().items():
            _warn_once(text, subject)


_ready_in_process = 0


def _set_up_process(options: _C.Options, group: Group) -> None:
    """Set up what a process needs once for all its groups."""
    global _ready_in_process
    logger.setLevel(options.log.upper())
    log_to_stderr()
    if _ready_in_process != os.getpid():
        _ready_in_process = os.getpid()
        core = native.load()
        core.set_split_function(_create_split)
        core.set_warning_function(_warn_on_first_rank)
        core.set_third_step_function(_tell_of_what_is_missing)
        core.set_shutdown_listener(_keep_last_stats)
        core.set_fsdp_caller(_fsdp_caller)
        core.set_weights_caller(_weights_caller)
        atexit.register(_shut_down, os.getpid())
        if group.rank == 0:
            _warn_of_unknown_variables(core)


def _warn_of_unknown_variables(core: Any) -> None:
    options = [variable for _, variable, *_ in core.option_fields()]
    own = {name: value for name, value in os.environ.items() if name.startswith("ISTHMUS_")}
    for unknown in unknown_variables(own, options):
        meant = f": did you mean {unknown.meant}?" if unknown.meant else ""
        logger.warning("the environment variable %s is none of isthmus's and changes nothing%s", unknown.name, meant)


# Imported at the first reduction, not at `import torch`, which registers: `units.identify` imports DTensor for seconds.
def _fsdp_caller(output: torch.Tensor, input: torch.Tensor) -> tuple[Any, bool, torch.Tensor | None] | None:
    from isthmus.units import identify

    return identify.fsdp_caller(output, input)


def _weights_caller() -> tuple[int, str]:
    from isthmus.units import identify

    return identify.weights_caller()


# What groups that were shut down had counted, by name; kept where rank 0 logs a summary at its exit.
_last_stats: dict[str, dict[str, Any]] = {}


def _keep_last_stats(description: str, unique_name: str, found: dict[str, Any]) -> None:
    """Called by the native module when torch shuts down a group."""
    if logger.isEnabledFor(logging.INFO) and dist.is_initialized() and dist.get_rank() == 0:
        from isthmus.report.statistics import group_name

        _last_stats[group_name(description, unique_name, _last_stats)] = found


def _log_summary() -> None:
    """Log, on rank 0 with log="info" or "debug", what crossed between nodes in this process."""
    for backend, group in backends_of(list(dist.distributed_c10d._world.pg_map)).items():
        _keep_last_stats(group.group_desc, group.group_name, backend.stats())
    if any(found["calls"] for found in _last_stats.values()):
        from isthmus.report.statistics import added
        from isthmus.report.summary import summary_lines

        logger.info("%s", "\n".join(summary_lines(added(_last_stats))))


def _shut_down(process: int) -> None:
    """Stop the threads of all groups before the interpreter exits. A forked child has none of them."""
    if os.getpid() == process:
        try:
            _log_summary()
        except Exception:  # a program that is over must not end with an error because of its summary
            logger.warning("no summary", exc_info=True)
        native.load().shutdown_all()
