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

#: After this long, a rank logs who is missing, and all go on waiting.
NOTICE_S = 10.0
_POLL_S = 1.0
_GIVEN_UP = "given_up"


def wait_for_ranks(store: Store, ranks: Sequence[int], keys: Sequence[str], own: int, timeout: timedelta) -> None:
    """Wait until `store` has the keys of all ranks, one each. own: this rank, one of `ranks`, whose key is set.

    After `NOTICE_S` the first rank that has come logs who is missing. After `timeout` every rank that has come raises a
    DistStoreError that names them.
    """
    start_s = time.monotonic()
    notice = timedelta(seconds=NOTICE_S)
    try:
        store.wait(list(keys), min(timeout, notice))
        return
    except dist.DistStoreError:
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
        time.sleep(_POLL_S)
        missing = [rank for rank in missing if not store.check([key_of[rank]])]
