"""Residuals that move to another quorum, against a reference that looks at one element at a time."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.torchft.quorum import RankPosition, moved

SCALE = 0.5  # a power of two: products have no rounding


def node_of_rank(nodes: int, ranks_per_node: int) -> list[int]:
    return [node for node in range(nodes) for _ in range(ranks_per_node)]


def rail_of(rank: int, nodes: int, ranks_per_node: int) -> list[int]:
    return [node * ranks_per_node + rank % ranks_per_node for node in range(nodes)]


def unsent_of(state: dict[str, Any], rank: int, nodes: int, ranks_per_node: int) -> list[float]:
    """Return what the state has not sent of each element, in units of the gradient."""
    size, chunk = nodes * ranks_per_node, -(-state["num_elements"] // (nodes * ranks_per_node))
    values = [0.0] * (size * chunk)
    others = [other for other in rail_of(rank, nodes, ranks_per_node) if other != rank]
    for place, other in enumerate(others):
        for i in range(chunk):
            values[other * chunk + i] = state["residual"][place * chunk + i].item()
    for i in range(chunk):
        values[rank * chunk + i] = state["result_residual"][i].item() / state["scale"]
    return values[: state["num_elements"]]


def state_of(num_elements: int, rank: int, nodes: int, ranks_per_node: int, scale: float = SCALE) -> dict[str, Any]:
    """Return a state whose residuals are whole numbers, zero in the padding."""
    size = nodes * ranks_per_node
    chunk = -(-num_elements // size)
    whole = torch.zeros(size * chunk)
    whole[:num_elements] = torch.arange(1, num_elements + 1) * 8 + rank
    chunks = whole.split(chunk)
    others = [other for other in rail_of(rank, nodes, ranks_per_node) if other != rank]
    return {
        "name": "u",
        "num_elements": num_elements,
        "step": 3,
        "scale": scale,
        "residual": torch.cat([chunks[other] for other in others]),
        "result_residual": chunks[rank] * scale,
    }


# More than one node: a single one has no residuals.
shapes = st.tuples(st.integers(2, 5), st.integers(1, 2))


@given(shapes, shapes, st.integers(1, 60), st.data())
def test_an_element_keeps_what_was_not_sent_of_it(
    before: tuple[int, int], now: tuple[int, int], num_elements: int, data: st.DataObject
) -> None:
    old = data.draw(st.integers(0, before[0] * before[1] - 1))
    new = data.draw(st.integers(0, now[0] * now[1] - 1))
    state = state_of(num_elements, old, *before)
    result = moved(state, RankPosition(old, node_of_rank(*before)), RankPosition(new, node_of_rank(*now)))
    chunk = -(-num_elements // (now[0] * now[1]))
    assert result["residual"].numel() == (now[0] - 1) * chunk
    assert result["result_residual"].numel() == chunk
    owned = rail_of(new, *now)
    expected = [value if i // chunk in owned else 0.0 for i, value in enumerate(unsent_of(state, old, *before))]
    assert unsent_of(result, new, *now) == expected
    if now[1] == 1:
        assert sum(expected) == sum(unsent_of(state, old, *before)), "all rails are this rank's: nothing is lost"
    others = {key: value for key, value in state.items() if "residual" not in key}
    assert {key: value for key, value in result.items() if "residual" not in key} == others


@given(st.integers(2, 5), st.integers(2, 5), st.integers(1, 60), st.data())
def test_there_and_back(before: int, now: int, num_elements: int, data: st.DataObject) -> None:
    old, new = data.draw(st.integers(0, before - 1)), data.draw(st.integers(0, now - 1))
    here, there = RankPosition(old, node_of_rank(before, 1)), RankPosition(new, node_of_rank(now, 1))
    state = state_of(num_elements, old, before, 1)
    back = moved(moved(state, here, there), there, here)
    assert torch.equal(back["residual"], state["residual"])
    assert torch.equal(back["result_residual"], state["result_residual"])


def test_a_state_that_has_nothing_to_send_stays_as_it_is() -> None:
    two, three = RankPosition(0, [0, 1]), RankPosition(0, [0, 1, 2])
    for state in (state_of(5, 0, 2, 1, scale=0), state_of(5, 0, 2, 1) | {"residual": torch.zeros(0)}):
        assert moved(state, two, three) is state
