"""For which ranks this one waited, and whether one of them is behind the others."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import isthmus
from isthmus.report.looks import behind, behind_since_last_look, in_words
from support import ranks


def test_a_rank_is_behind_where_others_of_its_tier_are_not() -> None:
    (text,) = behind({"inter": {4: 3.0, 8: 0.2}, "intra": {1: 0.1, 2: 0.1}, "flat": {}}, 10.0)
    assert text.startswith(
        "3.0 of the last 10.0 s were spent on waiting for rank 4 between nodes, and at most 0.2 s for any other"
    )


@pytest.mark.parametrize(
    "waits",
    [
        {"inter": {4: 9.0}},  # of two nodes: it may be the link
        {"inter": {4: 5.0, 8: 4.0}},  # all are slow
        {"inter": {4: 0.9, 8: 0.0}},  # who cares
        {"inter": {4: -5.0, 8: -6.0}},  # the counters were reset
        {"inter": {}, "intra": {}, "flat": {}},
    ],
)
def test_nobody_is_behind(waits: dict[str, dict[int, float]]) -> None:
    assert list(behind(waits, 10.0)) == []


def test_in_words() -> None:
    assert in_words({"intra": {1: 0.5}, "inter": {2: 0.25, 4: 3.0}, "flat": {}}) == (
        "3.00 s for rank 4, 0.25 s for rank 2 between nodes; 0.50 s for rank 1 within the node"
    )
    assert in_words({"intra": {}, "inter": {}, "flat": {}}) == ""


def one_is_late(rank: int, world_size: int) -> tuple[dict[int, float], str]:
    """Rank 2 comes late to each reduction."""
    ranks.init()

    def step() -> None:
        time.sleep(1.0 if rank == 2 else 0.0)
        with isthmus.unit("x"):
            dist.reduce_scatter_tensor(torch.empty(4096), torch.ones(3 * 4096))

    step()
    behind_since_last_look([isthmus.stats()])
    for _ in range(3):
        step()
    found: dict[int, float] = isthmus.stats()["peer_waits_s"]["inter"]
    return found, behind_since_last_look([isthmus.stats()])


@pytest.mark.processes
def test_a_late_rank_is_named_by_all_but_itself() -> None:
    outcomes = ranks.run(one_is_late, 3, env={"ISTHMUS_NODES": "3x1", "ISTHMUS_MIN_ELEMENTS": "0"})
    for rank in (0, 1):
        waits, text = outcomes[rank]
        assert set(waits) == {0, 1, 2} - {rank}
        assert "waiting for rank 2 between nodes" in text, outcomes
    assert "rank 2" not in outcomes[2][1]
