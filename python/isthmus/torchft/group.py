"""The process group that torchft reconfigures: a backend of Isthmus for each quorum."""

from __future__ import annotations

import copy
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper

from isthmus.base import native
from isthmus.base.backends import has_two_tiers, options_from
from isthmus.group.gloo import GroupRanks
from isthmus.group.nodes.launchers import claim_beyond
from isthmus.group.nodes.node_map import num_ranks_in
from isthmus.group.register import create
from isthmus.model.calls import Described
from isthmus.report.statistics import sum_of
from isthmus.torch_private.groups import make_group, set_timeout_of_backend
from isthmus.torchft.quorum import Quorum, RankPosition, moved

if TYPE_CHECKING:
    from isthmus import _C

logger = logging.getLogger("isthmus")

# What this thread's manager reduces: the gradient, if it is one, and how to ask for the manager's step.
_reducing: ContextVar[tuple[Described | None, Callable[[], int]] | None] = ContextVar("reducing", default=None)

# Of `isthmus.stats`, what is added up over quorums.
_COUNTS = ("calls", "collectives", "codec", "compressed_calls", "exact_calls", "dropped_residuals", "ran_s", "waited_s")


class ProcessGroupIsthmus(ProcessGroupWrapper):  # type: ignore[misc]  # torchft has no types
    """A `torchft.process_group.ProcessGroup` that compresses gradients between replica groups. CPU and CUDA tensors.

    Take it with `isthmus.torchft.Manager`, which names the gradients; with torchft's own manager all is exact. Each
    replica group counts as a node, unless the option `nodes` (ISTHMUS_NODES) or a launcher that started several replica
    groups puts some of them on one: ``nodes="2x4"`` then counts ranks over all replica groups, by the numbers at the
    ends of their ids. Members on nodes of unequal size count as a node each.

    It serves the contracts of torchft 0.2, `configure()`, and of its nightlies, `reconfigure()`: both leave the quorum
    before without waiting for it, and meet the members of this one at a store. They raise DistError if those do not
    come within the timeout or before an `abort`, and OptionError if their options differ.

    timeout: of each operation, and of meeting the others.
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
        self._options: Any = options_from(options, keywords)
        self._quorum: Quorum | None = None
        self._is_aborted = False  # since the quorum before was left
        # What was not sent yet in the quorum before, and this member's place there; kept while it is alone.
        self._unsent: tuple[list[dict[str, Any]], RankPosition] | None = None
        self._next_step: int | None = None  # the manager's, unless it loads another member's state
        self._members: frozenset[int] = frozenset()
        self._counts: Counter[str] = Counter()
        self._earlier: dict[str, Any] = {}  # counts of the quorums before

    # --- Quorums ---

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        ranks = self._global_ranks or []
        group = GroupRanks(
            store=store,
            name=f"torchft quorum {self.quorum_number}",
            rank=rank,
            global_ranks=ranks if len(set(ranks)) == world_size else list(range(world_size)),
            world_size=world_size,
            timeout=self._timeout,
            node=lambda: self._own_node(rank),
            interrupt=self._end_if_aborted,
        )
        options = copy.deepcopy(self._options)
        options.nodes = ""
        quorum = self._quorum = Quorum(create(group, options), rank, self.quorum_number)
        self._bring_unsent(quorum)
        if self._is_aborted:  # after they had met
            quorum.backend.abort()
        self._counts["quorums"] += 1
        self._counts["members_lost"] += len(self._members - set(group.global_ranks))
        self._members = frozenset(group.global_ranks)
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return make_group(quorum.backend, store, rank, world_size, devices)

    @property
    def quorum_number(self) -> int:
        """Return the number of the quorum, equal on all its members; 0 if torchft gave none."""
        return getattr(self, "_quorum_id", None) or getattr(self, "_uuid", None) or 0

    def _own_node(self, rank: int) -> str:
        """Return the node of this member; equal texts are one node."""
        if self._options.nodes:
            number = self._global_ranks[rank] if self._global_ranks else rank
            return f"node {_node_of(self._options.nodes, number)}"
        claim = claim_beyond(os.environ, self._group_world_size or 1)
        return f"node {claim.node}" if claim is not None else f"member {rank}"

    def _bring_unsent(self, quorum: Quorum) -> None:
        if self._unsent is None or not has_two_tiers(quorum.place.node_of_rank):
            return
        (states, before), self._unsent = self._unsent, None
        for state in states:
            quorum.backend.load_unit(moved(state, before, quorum.place))

    # --- Steps ---

    @contextmanager
    def reducing(self, gradient: Described | None, current_step: Callable[[], int]) -> Iterator[None]:
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
        managed, quorum = _reducing.get(), self._quorum
        if managed is None or quorum is None:
            return super().allreduce(tensors, opts)  # type: ignore[no-any-return]
        gradient, current_step = managed
        work: dist.Work | None = None
        named: AbstractContextManager[None] = nullcontext()
        try:
            if gradient is not None:
                step = current_step()
                quorum.begin_step(step, is_new_here=self._next_step not in (None, step))
                named = quorum.call_of(gradient)
            with named:
                work = super().allreduce(tensors, opts)
        except Exception as error:
            _note(quorum, error)
        return ManagedWork(work, tensors, lambda error: _note(quorum, error))

    def end_step(self, committed: bool, next_step: int) -> None:
        """End a step. What was refused is undone before the next one, which the manager will call `next_step`."""
        self._counts["committed_steps" if committed else "refused_steps"] += 1
        if self._quorum is not None:
            self._quorum.end_step(committed)
        self._next_step = next_step

    # --- Faults ---

    def abort(self, errored: bool = True) -> None:
        """Make all operations fail that are under way and still to come, until the next quorum. Returns at once.

        Ends the waiting for other members, too. errored: False where torchft leaves the quorum to enter another one.
        """
        if not errored:
            self.shutdown()
            self._is_aborted = False
            return
        self._is_aborted = True
        if self._quorum is not None:
            self._quorum.backend.abort()

    def _end_if_aborted(self) -> None:
        if self._is_aborted:
            raise dist.DistError("isthmus: this group was aborted while it waited for other members")

    def shutdown(self) -> None:
        """End threads and connections, without waiting for other members. In the next quorum the group serves again."""
        quorum, self._quorum, self._pg = self._quorum, None, None
        if quorum is None:
            return
        self._earlier = self._added_to_earlier(quorum.backend.stats())
        states = [state for state in quorum.end() if state["residual"].numel() > 0]
        if has_two_tiers(quorum.place.node_of_rank):
            self._unsent = (states, quorum.place)

    def errored(self) -> Exception | None:
        """Return why this quorum has failed, None if it has not."""
        if self._quorum is None:
            return None
        failure = self._quorum.backend.failure
        return self._quorum.error or (RuntimeError(failure) if failure else None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        self._timeout = timeout
        if self._quorum is not None:
            set_timeout_of_backend(self._quorum.backend, timeout)

    def getBackendName(self) -> str:
        """Return the name for torch."""
        return "torchft-isthmus"

    # --- Statistics ---

    def stats(self) -> dict[str, Any]:
        """Return `isthmus.stats` of this quorum, with calls, bytes and seconds of all.

        ``torchft`` has the number of ``quorums``, ``committed_steps``, ``refused_steps``, and of ``members_lost`` with
        what they had not sent. Raises ValueError if the group is not configured.
        """
        if self._quorum is None:
            raise ValueError("isthmus.torchft: this group is not configured: it has no statistics")
        now = self._quorum.backend.stats()
        return now | self._added_to_earlier(now) | {"torchft": dict(self._counts)}

    def _added_to_earlier(self, now: dict[str, Any]) -> dict[str, Any]:
        return {name: sum_of([self._earlier[name], now[name]]) if self._earlier else now[name] for name in _COUNTS}


class ManagedWork(dist.Work):
    """A Work that never raises: torchft's hook for DDP takes no exception, and asks `errored` before it commits.

    work: what is waited for; None: the call failed at once. tensors: what is reduced, unspecified after an error.
    """

    def __init__(
        self, work: dist.Work | None, tensors: list[torch.Tensor], report_error: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._work = work
        self._tensors = tensors
        self._report_error = report_error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the reduction is done or has failed; if it takes longer than `timeout`, it has failed, too."""
        try:
            if self._work is not None and not (self._work.wait(timeout) if timeout else self._work.wait()):
                raise TimeoutError(f"isthmus: the reduction was not done within {timeout}")
        except Exception as error:
            self._report_error(error)
        return True

    def block_current_stream(self) -> None:
        """Make the current stream wait."""
        if self._work is not None:
            self._work.block_current_stream()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors."""
        if self._work is None:
            done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            done.set_result(self._tensors)
            return done
        return self._work.get_future().then(self._value)

    def _value(self, future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        try:
            future.value()
        except Exception as error:
            self._report_error(error)
        return self._tensors


def _note(quorum: Quorum, error: Exception) -> None:
    if quorum.error is None:
        quorum.error = error
        logger.warning("torchft quorum %d: %s", quorum.number, str(error).partition("\n")[0])


def _node_of(text: str, number: int) -> int:
    """Return the node of a rank, by the option `nodes` over all replica groups. Raises OptionError if it has none."""
    size = num_ranks_in(text)
    nodes: list[int] = native.load().parse_nodes(text, size)
    if number >= size:
        raise native.load().OptionError(
            f'option nodes="{text}" places ranks 0 to {size - 1}, but this is rank {number}: replica ids end in '
            "numbers from 0 on"
        )
    return nodes[number]
