"""How ranks wait for each other before they make a group, and say who is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from isthmus.told import log_to_stderr
from isthmus.topology.node_map import name_ranks

logger = logging.getLogger("isthmus")

#: Who is missing after so long is said, while the others go on waiting.
NOTICE_S = 10.0
_POLL = timedelta(seconds=1)
_GIVEN_UP = "given_up"


def wait_for_ranks(store: Store, ranks: Sequence[int], keys: Sequence[str], own: int, timeout: timedelta) -> None:
    """Wait until `store` has the keys of all ranks, one each. own: this rank, one of `ranks`, whose key is set.

    After `NOTICE_S` the first rank that is there logs who is missing. Raises DistStoreError that names them after
    `timeout`, on every rank that came.
    """
    start_s = time.monotonic()
    is_said = False
    while True:
        try:
            store.wait(list(keys), _POLL)
            return
        except dist.DistStoreError:
            missing = [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]
        if not missing:
            return
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout.total_seconds() or store.check([_GIVEN_UP]):
            store.set(_GIVEN_UP, "")
            time.sleep(2 * _POLL.total_seconds())  # this rank may host the store, and others must see that
            raise dist.DistStoreError(f"{name_ranks(missing)} did not come within {timeout.total_seconds():g} s")
        if waited_s >= NOTICE_S and not is_said:
            is_said = True
            if own == min(set(ranks) - set(missing)):
                log_to_stderr()
                logger.warning("waiting for %s, up to %g s", name_ranks(missing), timeout.total_seconds())
