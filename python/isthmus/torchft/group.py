"""The process group that torchft reconfigures: a backend of Isthmus for each quorum."""

from __future__ import annotations

import copy
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper

from isthmus import native
from isthmus.backends import has_two_tiers
from isthmus.gloo import Group
from isthmus.group.register import create
from isthmus.report.statistics import added
from isthmus.topology.launchers import claim_beyond
from isthmus.topology.node_map import Nodes
from isthmus.torchft.residuals import Place, moved
from isthmus.torchft.work import ManagedWork
from isthmus.units.identify import Tag

if TYPE_CHECKING:
    from isthmus import _C

logger = logging.getLogger("isthmus")

_STEP_BITS = 40  # of the step in packets; the others hold the quorum's number
_STEP_MASK = (1 << _STEP_BITS) - 1
_QUORUM_MASK = (1 << (64 - _STEP_BITS)) - 1

# What this thread's manager reduces: the gradient, if it is one, and how to ask for the manager's step.
_reducing: ContextVar[tuple[Tag | None, Callable[[], int]] | None] = ContextVar("reducing", default=None)


class ProcessGroupIsthmus(ProcessGroupWrapper):  # type: ignore[misc]  # torchft has no stubs
    """A `torchft.process_group.ProcessGroup` that compresses gradients between replica groups. CPU and CUDA tensors.

    Take it with `isthmus.torchft.Manager`, which names the gradients; with torchft's own manager all is exact. Each
    replica group counts as a node, unless the option `nodes` (ISTHMUS_NODES) or a launcher that started several replica
    groups puts some of them on one: ``nodes="2x4"`` then counts ranks over all replica groups, by the numbers at the
    ends of their ids. Members on nodes of unequal size count as a node each.

    timeout: of each operation, and of what `configure` waits for.
    options: `isthmus.Options`; or give keywords: ``ProcessGroupIsthmus(bits=2, error_feedback="on")``. All members have
    equal ones. Raises OptionError (a ValueError) for a bad one.

    A step is a transaction: residuals of a step that was not committed, or in which the quorum changed, are those of
    the step before it. Over a change of the quorum a member keeps its residuals; one that joins, or has loaded another
    one's state, begins without. What a lost member had not sent yet is lost: with `quant` at most what one encoding
    leaves out, with `tagc` what the threshold has held back so far.
    """

    def __init__(
        self, timeout: timedelta = timedelta(seconds=60), options: _C.Options | None = None, **keywords: Any
    ) -> None:
        super().__init__(timeout)
        if options is not None and keywords:
            raise ValueError(f"give options=, or keywords ({', '.join(keywords)}), not both")
        self._options: _C.Options = native.load().Options(**keywords) if options is None else options
        self._backend: _C.Backend | None = None
        self._place: Place | None = None
        self._units: list[dict[str, Any]] = []  # of the quorum before, while this one has a single member
        self._units_place: Place | None = None
        self._members: tuple[int, ...] = ()
        self._uses: Counter[str] = Counter()  # how often the step has reduced under each name
        self._begun = False  # the backend has begun a step
        self._undo = False  # which was not committed
        self._error: Exception | None = None  # the first of this quorum that a manager's reduction met
        self._next_step: int | None = None  # the manager's, unless it loads another member's state
        self._earlier: list[dict[str, Any]] = []  # statistics of the quorums before
        self._counts = Counter[str]()

    # --- Quorums ---

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Leave the quorum before without waiting for it, and meet the members of this one at the store.

        Raises DistError if they do not come within the timeout, and OptionError if their options differ.
        """
        self._end_quorum()
        super().configure(
            store_addr, replica_id, rank, world_size, quorum_id, group_rank, group_world_size, global_ranks
        )

    def _end_quorum(self) -> None:
        backend, self._backend, self._pg, self._error = self._backend, None, None, None
        if backend is None:
            return
        self._earlier = [added(dict(enumerate([*self._earlier, backend.stats()])))] if self._earlier else [backend.stats()]
        states = backend.end(undo=self._begun)
        self._begun = self._undo = False
        if has_two_tiers(self._place.node_of_rank):
            self._units = [state for state in states if state["residual"].numel() > 0]
            self._units_place = self._place

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        ranks = self._global_ranks or []
        group = Group(
            store=store,
            name=f"torchft quorum {self._quorum_id}",
            rank=rank,
            global_ranks=ranks if len(set(ranks)) == world_size else list(range(world_size)),
            world_size=world_size,
            timeout=self._timeout,
            node=lambda: self._own_node(rank),
        )
        options = copy.deepcopy(self._options)
        options.nodes = ""
        self._backend = create(group, options, _even)
        self._place = Place(rank, self._backend.node_of_rank)
        self._count_members(group.global_ranks)
        self._bring_residuals()
        made = dist.ProcessGroup(store, rank, world_size)
        made._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            made._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._backend)
        return made

    def _own_node(self, rank: int) -> str:
        """Return the node of this member; equal texts are one node."""
        size = self._group_world_size or 1
        if self._options.nodes:
            return f"node {_node_of(self._options.nodes, (self._global_ranks or [rank])[rank])}"
        claim = claim_beyond(os.environ, size)
        return f"node {claim.node}" if claim is not None else f"member {rank}"

    def _count_members(self, ranks: Sequence[int]) -> None:
        self._counts["quorums"] += 1
        if self._members:
            self._counts["members_lost"] += len(set(self._members) - set(ranks))
        self._members = tuple(ranks)

    def _bring_residuals(self) -> None:
        """Load what the quorum before has not sent. It waits where this one has a single member."""
        if not self._units or not has_two_tiers(self._place.node_of_rank):
            return
        if len(self._units) < self._options.max_units:
            for state in self._units:
                self._backend.load_unit(moved(state, self._units_place, self._place))
        else:  # a member with a full table would refuse units that one who joins takes
            self._backend.count_dropped(len(self._units))
        self._units = []

    # --- Steps ---

    @contextmanager
    def reducing(self, gradient: Tag | None, current_step: Callable[[], int]) -> Iterator[None]:
        """Name what this thread reduces in the block; None: no gradient. current_step: the manager's.

        Its reductions do not raise: `errored` tells what failed.
        """
        token = _reducing.set((gradient, current_step))
        try:
            yield
        finally:
            _reducing.reset(token)

    def allreduce(self, tensors: list[torch.Tensor], opts: object) -> dist.Work:
        """Reduce over the members: a gradient, where `reducing` has named one."""
        managed = _reducing.get()
        if managed is None:
            return super().allreduce(tensors, opts)
        gradient, current_step = managed
        work = None
        try:
            if gradient is None:
                work = super().allreduce(tensors, opts)
            else:
                self._begin_step(current_step())
                work = self._reduce_gradient(gradient, tensors, opts)
        except Exception as error:
            self._note_error(error)
        return ManagedWork(work, tensors, self._note_error)

    def _reduce_gradient(self, gradient: Tag, tensors: list[torch.Tensor], opts: object) -> dist.Work:
        name, *rest = gradient
        self._uses[name] += 1
        if self._uses[name] > 1:  # several backward passes in a step, or models with equal names
            name = f"{name} ({self._uses[name]})"
        core = native.load()
        core.push_unit(name, *rest)
        try:
            return super().allreduce(tensors, opts)
        finally:
            core.pop_unit()

    def _note_error(self, error: Exception) -> None:
        if self._error is None:
            logger.warning("torchft quorum %s: %s", self._quorum_id, str(error).partition("\n")[0])
            self._error = error

    def _begin_step(self, step: int) -> None:
        if self._begun and not self._undo:
            return
        if self._undo:
            self._backend.undo_step()
        if self._next_step not in (None, step):  # it has loaded another member's state, who knows nothing of residuals
            self._units = []
            self._backend.clear_units()
        self._backend.begin_step(((self._quorum_id or 0) & _QUORUM_MASK) << _STEP_BITS | step & _STEP_MASK)
        self._begun, self._undo = True, False
        self._uses.clear()

    def end_step(self, committed: bool, next_step: int) -> None:
        """End a step. What was refused is undone before the next one."""
        self._counts["committed_steps" if committed else "refused_steps"] += 1
        self._undo = self._begun and not committed
        self._begun = self._undo
        self._next_step = next_step

    # --- Faults ---

    def abort(self, errored: bool = True) -> None:
        """Make all operations fail that are under way and still to come, until `configure`. Returns at once."""
        if self._backend is not None:
            self._backend.abort()

    def shutdown(self) -> None:
        """End threads and connections. The group serves again once it is configured."""
        self._end_quorum()

    def errored(self) -> Exception | None:
        """Return why this quorum has failed, None if it has not."""
        failure = self._backend.failure if self._backend is not None else ""
        return self._error or (RuntimeError(failure) if failure else None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        self._timeout = timeout
        if self._backend is not None:
            self._backend._set_default_timeout(timeout)

    def getBackendName(self) -> str:
        """Return the name for torch."""
        return "torchft-isthmus"

    # --- Statistics ---

    def stats(self) -> dict[str, Any]:
        """Return `isthmus.stats` of this group over all quorums.

        ``torchft`` has the number of ``quorums``, ``committed_steps``, ``refused_steps``, and of ``members_lost``.
        """
        parts = [*self._earlier, *([self._backend.stats()] if self._backend is not None else [])]
        if not parts:
            raise ValueError("this group was never configured")
        return added(dict(enumerate(parts))) | {"torchft": dict(self._counts)}


def _even(nodes: Nodes) -> Nodes:
    """Return the node map, or one with a node for each member where nodes would be uneven."""
    ranks = nodes.node_of_rank
    if has_two_tiers(ranks) or len(ranks) == 1:
        return nodes
    return Nodes(list(range(len(ranks))), "torchft", f"by {nodes.source} nodes would be uneven")


def _node_of(text: str, number: int) -> int:
    """Return the node of a rank, by the option `nodes` over all replica groups. Raises OptionError if it has none."""
    numbers = [int(word) for word in re.findall(r"\d+", text)]
    size = math.prod(numbers) if "x" in text else len(numbers)
    nodes = native.load().parse_nodes(text, size)
    if number >= size:
        raise native.load().OptionError(
            f'option nodes="{text}" places ranks 0 to {size - 1}, but this is rank {number}: replica ids end in numbers '
            "from 0 on"
        )
    return nodes[number]
