"""What a reduce-scatter takes on a GPU, counted on the fake one: the figures of docs/cuda.md."""

from __future__ import annotations

import pytest

from gpu.counts.chain import CODECS, MACHINES, PLAIN, Chain, count_chains
from python.cuda import worlds as cuda_worlds

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

MOST_LAUNCHES = {PLAIN: 1, "quant": 7, "none": 7, "tagc": 17}


@pytest.fixture(scope="module", params=MACHINES)
def chains(request: pytest.FixtureRequest) -> dict[str, Chain]:
    return {chain.codec: chain for chain in count_chains(request.param, is_timed=False)}


def ratio(chain: Chain, *, encode: bool) -> float:
    moved = chain.moved_bytes(encode=encode)
    assert moved is not None, f"a pass of {chain.codec} does not say what it moves"
    return moved / chain.compulsory_bytes(encode=encode)


def test_launches_do_not_grow_with_the_nodes(chains: dict[str, Chain]) -> None:
    assert {codec: chain.num_launches for codec, chain in chains.items()} == MOST_LAUNCHES
    assert {chains[codec].nccl_launches for codec in CODECS} == {3}  # foreign pieces, exchange, own piece


def test_nothing_waits_and_nothing_is_allocated(chains: dict[str, Chain]) -> None:
    assert {codec: (chain.synchronizations, chain.allocations) for codec, chain in chains.items()} == {
        codec: (0, 0) for codec in (PLAIN, *CODECS)
    }


def test_each_byte_is_moved_about_once(chains: dict[str, Chain]) -> None:
    assert ratio(chains["none"], encode=True) == pytest.approx(1, abs=0.01)
    assert ratio(chains["none"], encode=False) == pytest.approx(1, abs=0.01)
    assert ratio(chains["quant"], encode=True) < 1.01
    assert ratio(chains["quant"], encode=False) < 1.02
