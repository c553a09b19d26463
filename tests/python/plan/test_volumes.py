"""Formulas of bytes: each path by hand, from docs/algorithms.md and docs/packet_format.md."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.plan.packets import WireOptions
from isthmus.plan.volumes import Collective, IsthmusFormula, Kind, sent_bytes, world_formula

TAGC = WireOptions(codec="tagc")
NONE = WireOptions(codec="none")
FLAT = WireOptions(codec="tagc", tiers="flat")
WORLD = (0, 1, 2, 3)


def on_isthmus(options, ranks_per_node=2):
    return IsthmusFormula(options, world_formula("gloo", ranks_per_node))


def inter_bytes(formula, kind, ranks, num_elements, element_bytes=2):
    collective = Collective(kind, ranks, num_elements, element_bytes)
    return [sent_bytes(formula(collective, rank))[0] for rank in ranks]


def intra_bytes(formula, kind, ranks, num_elements, element_bytes=2):
    collective = Collective(kind, ranks, num_elements, element_bytes)
    return [sum(hop.intra_bytes for hop in formula(collective, rank)) for rank in ranks]


GATHER, SCATTER, REDUCE = Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE
GLOO, NCCL = world_formula("gloo", 2), world_formula("nccl", 2)
# 131072 elements are 32768 a shard: 512 blocks of 64, the shortest, as even these give less than 96 rows. A packet has
# header, flags of 512 blocks, index, and a sketch of ceil(512 / 10) rows; on a rail 1024 blocks and 103 rows.
PACKET, RAIL_PACKET = 64 + 64 + 4096 + 52 * 64 * 4, 64 + 128 + 8192 + 103 * 64 * 4
EDGE = 3 * (2 * 4096 + 52 * 64 * 4)
BELOW = 65532  # of min_elements


@pytest.mark.parametrize(
    ("formula", "kind", "ranks", "num_elements", "expected"),
    [
        # Rings send along the edges that leave a node; reduce-scatters of Gloo are all-reduces.
        (GLOO, GATHER, WORLD, 1000, [0, 1500, 0, 1500]),
        (GLOO, SCATTER, WORLD, 1000, [0, 3000, 0, 3000]),
        (GLOO, GATHER, (0, 1), 1000, [0, 0]),
        (GLOO, REDUCE, (1, 3), 1000, [2000, 2000]),
        (NCCL, SCATTER, WORLD, 1000, [0, 1500, 0, 1500]),
        (NCCL, REDUCE, WORLD, 1000, [0, 3000, 0, 3000]),
        (on_isthmus(TAGC), GATHER, WORLD, 131072, [65536] * 4),
        (on_isthmus(TAGC), SCATTER, WORLD, 131072, [PACKET] * 4),
        (on_isthmus(NONE), SCATTER, WORLD, 131072, [48 + 65536] * 4),
        # Below min_elements reductions are plain, and gathers the world backend's.
        (on_isthmus(TAGC), SCATTER, WORLD, BELOW, [48 + 32768] * 4),
        (on_isthmus(TAGC), GATHER, WORLD, BELOW, [0, BELOW * 3 // 2] * 2),
        # All-reduces: along a rail, below min_elements and padded to even, over four nodes, and packets of 8 bytes.
        (on_isthmus(TAGC), REDUCE, (1, 3), 131072, [2 * RAIL_PACKET] * 2),
        (on_isthmus(TAGC), REDUCE, (1, 3), 65535, [2 * (48 + 65536)] * 2),
        (on_isthmus(NONE, 1), REDUCE, WORLD, 131072, [2 * 3 * (48 + 65536)] * 4),
        (on_isthmus(NONE), REDUCE, WORLD, 131073, [2 * (48 + 65544)] * 4),
        # In a single tier a ring of indexes and sketches; an all-reduce is a float32 ring, gathered in two tiers.
        (on_isthmus(FLAT), SCATTER, WORLD, 131072, [0, EDGE, 0, EDGE]),
        (on_isthmus(FLAT), REDUCE, WORLD, 4000, [48 + 2000, 3 * 1000 * 4 + 48 + 2000] * 2),
        # With one rank a node plain chunks go straight to their owners, in their own type.
        (on_isthmus(FLAT, 1), SCATTER, WORLD, 4000, [3 * 1000 * 2] * 4),
        (on_isthmus(FLAT, 1), REDUCE, WORLD, 4000, [3 * 1000 * 2 + 3 * (48 + 2000)] * 4),
    ],
)
def test_bytes_between_nodes_by_hand(formula, kind, ranks, num_elements, expected):
    assert inter_bytes(formula, kind, ranks, num_elements) == expected


def test_bytes_and_rounds_within_a_node_by_hand():
    assert intra_bytes(GLOO, GATHER, WORLD, 1000) == [1500, 0, 1500, 0]
    ring, gather = 3 * 1000 * 4, 48 + 2000
    assert intra_bytes(on_isthmus(FLAT), REDUCE, WORLD, 4000) == [ring + 2 * gather, 2 * gather] * 2
    (hop,) = NCCL(Collective(REDUCE, WORLD, 1000, 2), 0)
    assert hop.steps == 6


@pytest.mark.parametrize(
    ("options", "kind", "within", "between"),
    [
        (NONE, SCATTER, [2048] * 4, [1072] * 4),
        (TAGC, SCATTER, [2048] * 4, [960] * 4),
        (NONE, GATHER, [2048] * 4, [1024] * 4),
        (NONE, REDUCE, [4192] * 4, [2144] * 4),
        (TAGC, REDUCE, [3968] * 4, [1920] * 4),
        (FLAT, SCATTER, [2496, 0] * 2, [0, 2496] * 2),
        (dataclasses.replace(FLAT, codec="none"), SCATTER, [3072, 0] * 2, [0, 3072] * 2),
    ],
)
def test_the_example_of_the_document(options, kind, within, between):
    formula = on_isthmus(dataclasses.replace(options, min_elements=0))
    assert intra_bytes(formula, kind, WORLD, 1024, 4) == within
    assert inter_bytes(formula, kind, WORLD, 1024, 4) == between


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (Kind.REDUCE_SCATTER, [1, 0, 2, 0]),  # within the node, encode, to two other nodes, decode
        (Kind.ALL_GATHER, [2, 1]),
        (Kind.ALL_REDUCE, [1, 0, 2, 0, 0, 2, 1, 0]),
    ],
)
def test_parts_leave_a_node_in_rounds_and_all_at_once_within_it(kind, steps):
    hops = on_isthmus(TAGC)(Collective(kind, range(6), 600_000, 2), 0)
    assert [hop.steps for hop in hops] == steps


def test_codecs_work_on_pieces_for_the_others_and_on_all_results():
    def work(kind):
        hops = on_isthmus(TAGC)(Collective(kind, range(6), 600_000, 2), 0)
        return sum(hop.encoded_elements for hop in hops), sum(hop.decoded_elements for hop in hops)

    # Of 3 nodes x 2 ranks: pieces for two other nodes, their packets, and one result of each of the six ranks.
    chunk = 100_000
    assert work(Kind.REDUCE_SCATTER) == (2 * chunk, 2 * chunk)
    assert work(Kind.ALL_REDUCE) == (2 * chunk + chunk, 2 * chunk + 6 * chunk)
    assert work(Kind.ALL_GATHER) == (0, 0)


@pytest.mark.parametrize("kind", list(Kind))
def test_within_a_node_nothing_leaves_it_and_nothing_is_counted(kind):
    for rank in (2, 3):
        assert sent_bytes(on_isthmus(TAGC)(Collective(kind, (2, 3), 131072, 2), rank)) == (0, 0)


@pytest.mark.parametrize("kind", list(Kind))
def test_empty_tensors_and_single_ranks_send_nothing(kind):
    for formula in (world_formula("gloo", 2), on_isthmus(TAGC), on_isthmus(FLAT)):
        assert formula(Collective(kind, WORLD, 0, 2), 1) == ()
        assert formula(Collective(kind, (1,), 100, 2), 1) == ()


@given(
    st.sampled_from([TAGC, NONE, FLAT, dataclasses.replace(FLAT, codec="none")]),
    st.sampled_from(list(Kind)),
    st.integers(2, 5),
    st.integers(1, 4),
    st.integers(1, 3000),
    st.sampled_from([2, 4, 8]),
)
def test_every_node_sends_the_same_and_ranges_are_as_good_as_lists(options, kind, nodes, local, chunk, element_bytes):
    formula = on_isthmus(dataclasses.replace(options, min_elements=500), local)
    num_elements = chunk * nodes * local
    sent = inter_bytes(formula, kind, range(nodes * local), num_elements, element_bytes)
    assert sent == inter_bytes(formula, kind, tuple(range(nodes * local)), num_elements, element_bytes)
    by_node = [sum(sent[node * local : (node + 1) * local]) for node in range(nodes)]
    assert len(set(by_node)) == 1
    assert by_node[0] > 0
