"""How ranks meet at a store before they make a group, and say who is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from isthmus.base.error_reports import log_to_stderr
from isthmus.group.nodes.node_map import name_ranks

logger = logging.getLogger("isthmus")

#: After this long, a rank logs who is missing, and all go on waiting.
NOTICE_S = 10.0
_POLL_S = 1.0
# How often the first rank looks for others that want to come in, and all ranks whether they are interrupted.
_DOOR_POLL_S = 0.005
_GIVEN_UP = "given_up"


def meet(
    store: Store,
    ranks: Sequence[int],
    index: int,
    own: str,
    timeout: timedelta,
    interrupt: Callable[[], None] | None = None,
) -> tuple[Store, list[bytes]]:
    """Return `store` under a prefix that these ranks alone use, and what each of them says. Called by all of `ranks`.

    index: this rank's place in `ranks`; own: what it says. After `NOTICE_S` the first rank that has come logs who is
    missing. After `timeout` every rank that has come raises a DistStoreError that names them. `interrupt`, if given, is
    called again and again until all have come; what it raises ends the wait of this rank.

    torchrun keeps its store when it starts ranks again, and ranks may have died at any point of an earlier meeting: the
    store does not say who is there. So each rank takes a ticket that nobody had before. The first rank's is the prefix,
    and it writes that to every ticket there is until all have come: whoever reads it lives.
    """
    ticket = store.add("isthmus/tickets", 1)
    meanwhile = interrupt
    if index == 0:
        prefix = f"isthmus/{ticket}"
        meanwhile = _doorkeeper(store, prefix, interrupt)
    else:
        prefix = _answer_to(PrefixStore(_name_of(ticket), store), ranks, index, timeout, interrupt)
    store = PrefixStore(prefix, store)
    said = exchange(store, ranks, index, own, timeout, meanwhile)
    # Who went on to another meeting while the first rank still lets others in would be let in to this one.
    if index == 0:
        store.set("all_have_come", "")
    store.wait(["all_have_come"], timeout)
    return store, said


def exchange(
    store: Store,
    ranks: Sequence[int],
    index: int,
    own: str,
    timeout: timedelta,
    interrupt: Callable[[], None] | None = None,
) -> list[bytes]:
    """Return what each of these ranks says, as `meet` does, where nobody has written to `store` before."""
    keys = [f"introduction/{place}" for place in range(len(ranks))]
    store.set(keys[index], own)
    _wait_for_ranks(store, ranks, keys, ranks[index], timeout, interrupt)
    return list(store.multi_get(keys))


def _name_of(ticket: int) -> str:
    return f"isthmus/ticket/{ticket}"


def _doorkeeper(store: Store, prefix: str, interrupt: Callable[[], None] | None) -> Callable[[], None]:
    """Return what the first rank does again and again until all have come."""
    answered = 0

    def answer() -> None:
        nonlocal answered
        if interrupt:
            interrupt()
        newest = store.add("isthmus/tickets", 0)
        for ticket in range(answered + 1, newest + 1):
            store.set(f"{_name_of(ticket)}/prefix", prefix)
        answered = newest

    return answer


def _answer_to(
    ticket: Store, ranks: Sequence[int], index: int, timeout: timedelta, interrupt: Callable[[], None] | None
) -> str:
    """Return the first rank's answer to a ticket of this rank.

    Where the first rank is missing, the second one says so for all: each takes for granted that it is there.
    """
    ticket.set("here", "")
    _wait_for_ranks(ticket, ranks[: index + 1], ["prefix", *["here"] * index], ranks[index], timeout, interrupt)
    return ticket.get("prefix").decode()


def _wait_for_ranks(
    store: Store,
    ranks: Sequence[int],
    keys: Sequence[str],
    own: int,
    timeout: timedelta,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Wait until `store` has the keys of all ranks, one each. own: this rank, one of `ranks`, whose key is set.

    `meanwhile`, if given, is called again and again.
    """
    start_s = time.monotonic()
    notice = timedelta(seconds=NOTICE_S)
    if _come_within(min(timeout, notice), store, list(keys), meanwhile):
        return
    key_of = dict(zip(ranks, keys, strict=True))
    # Poll from here on: whenever wait() times out, torch logs errors of sockets.
    missing = [rank for rank in ranks if not store.check([key_of[rank]])]
    if missing and timeout > notice and own == min(set(ranks) - set(missing)):
        log_to_stderr()
        logger.warning("waiting for %s, up to %g s", name_ranks(missing), timeout.total_seconds())
    while missing:
        if time.monotonic() - start_s >= timeout.total_seconds() or store.check([_GIVEN_UP]):
            store.set(_GIVEN_UP, "")
            time.sleep(2 * _POLL_S)  # this rank may host the store, and others must see that
            raise dist.DistStoreError(f"{name_ranks(missing)} did not come within {timeout.total_seconds():g} s")
        if meanwhile:
            meanwhile()
        time.sleep(_POLL_S)
        missing = [rank for rank in missing if not store.check([key_of[rank]])]


def _come_within(limit: timedelta, store: Store, keys: list[str], meanwhile: Callable[[], None] | None) -> bool:
    if meanwhile is None:
        try:
            store.wait(keys, limit)
        except dist.DistStoreError:
            return False
        return True
    end_s = time.monotonic() + limit.total_seconds()
    while not (have_come := store.check(keys)) and time.monotonic() < end_s:
        meanwhile()
        time.sleep(_DOOR_POLL_S)
    return have_come
