"""Ranks that meet at a store in which earlier ranks, that died, left what they had to say."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from isthmus.group.meeting import meet
from support.limits import OPERATION_S, scaled

RANKS = [4, 5, 6]
ALL = range(len(RANKS))


def met(
    store: dist.Store, words: str, places: Sequence[int] = ALL, timeout_s: float = OPERATION_S
) -> list[tuple[int, list[bytes]]]:
    """Let some of the ranks come, each a thread; return how many had gone on before each, and what it was told."""

    def come(place: int) -> tuple[int, list[bytes]]:
        fresh, texts = meet(store, RANKS, place, f"{words} {place}", timedelta(seconds=timeout_s))
        return fresh.add("gone on", 1) - 1, texts

    with ThreadPoolExecutor() as threads:
        return sorted(threads.map(come, places))


@pytest.mark.parametrize("earlier", [[], [0], [1, 2], [0, 2]], ids=str)
def test_what_dead_ranks_left_misleads_nobody(earlier: list[int]) -> None:
    store = dist.HashStore()
    if earlier:
        with pytest.raises(dist.DistStoreError, match=r"did not come within"):
            met(store, "dead", earlier, scaled(0.2))
    for words in ("one", "two"):
        told = [f"{words} {place}".encode() for place in ALL]
        assert met(store, words) == [(place, told) for place in ALL]
