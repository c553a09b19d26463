"""Formulas of bytes: each path by hand, from docs/algorithms.md and docs/packet_format.md."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.plan.packets import WireOptions
from isthmus.plan.volumes import Collective, IsthmusFormula, Kind, gloo_formula, nccl_formula, sent_bytes

TAGC = WireOptions()
NONE = WireOptions(codec="none")
FLAT = WireOptions(tiers="flat")
WORLD = (0, 1, 2, 3)


def on_isthmus(options, ranks_per_node=2):
    return IsthmusFormula(options, gloo_formula(ranks_per_node))


def inter_bytes(formula, kind, ranks, num_elements, element_bytes=2):
    collective = Collective(kind, ranks, num_elements, element_bytes)
    return [sent_bytes(formula(collective, rank)).num_bytes for rank in ranks]


def intra_bytes(formula, kind, ranks, num_elements, element_bytes=2):
    collective = Collective(kind, ranks, num_elements, element_bytes)
    return [sum(hop.intra_bytes for hop in formula(collective, rank)) for rank in ranks]


def test_gloo_sends_along_the_edges_of_its_ring_that_leave_a_node():
    formula = gloo_formula(2)
    assert inter_bytes(formula, Kind.ALL_GATHER, WORLD, 1000) == [0, 1500, 0, 1500]
    assert intra_bytes(formula, Kind.ALL_GATHER, WORLD, 1000) == [1500, 0, 1500, 0]
    assert inter_bytes(formula, Kind.REDUCE_SCATTER, WORLD, 1000) == [0, 3000, 0, 3000]
    assert inter_bytes(formula, Kind.ALL_GATHER, (0, 1), 1000) == [0, 0]
    assert inter_bytes(formula, Kind.ALL_REDUCE, (1, 3), 1000) == [2000, 2000]


def test_a_true_ring_reduce_scatters_in_one_pass():
    formula = nccl_formula(2)
    assert inter_bytes(formula, Kind.REDUCE_SCATTER, WORLD, 1000) == [0, 1500, 0, 1500]
    assert inter_bytes(formula, Kind.ALL_REDUCE, WORLD, 1000) == [0, 3000, 0, 3000]
    (hop,) = formula(Collective(Kind.ALL_REDUCE, WORLD, 1000, 2), 0)
    assert hop.steps == 6


def test_two_tiers_by_hand():
    # 131072 elements are 32768 a shard: 512 blocks of 64, the shortest, as even these give less than 96 rows.
    packet = 64 + 64 + 4096 + 52 * 64 * 4  # header, flags of 512 blocks, index, sketch of ceil(512 / 10) rows
    assert inter_bytes(on_isthmus(TAGC), Kind.ALL_GATHER, WORLD, 131072) == [65536] * 4
    assert inter_bytes(on_isthmus(TAGC), Kind.REDUCE_SCATTER, WORLD, 131072) == [packet] * 4
    assert inter_bytes(on_isthmus(NONE), Kind.REDUCE_SCATTER, WORLD, 131072) == [48 + 65536] * 4
    edge = 3 * (2 * 4096 + 52 * 64 * 4)
    assert inter_bytes(on_isthmus(FLAT), Kind.REDUCE_SCATTER, WORLD, 131072) == [0, edge, 0, edge]


@pytest.mark.parametrize(
    ("options", "kind", "within", "between"),
    [
        (NONE, Kind.REDUCE_SCATTER, 2048, 1072),
        (WireOptions(min_elements=0), Kind.REDUCE_SCATTER, 2048, 960),
        (NONE, Kind.ALL_GATHER, 2048, 1024),
        (NONE, Kind.ALL_REDUCE, 4192, 2144),
        (WireOptions(min_elements=0), Kind.ALL_REDUCE, 3968, 1920),
    ],
)
def test_the_example_of_the_document(options, kind, within, between):
    formula = on_isthmus(dataclasses.replace(options, min_elements=0))
    assert intra_bytes(formula, kind, WORLD, 1024, 4) == [within] * 4
    assert inter_bytes(formula, kind, WORLD, 1024, 4) == [between] * 4


def test_the_example_of_the_document_in_a_single_tier():
    formula = on_isthmus(dataclasses.replace(FLAT, min_elements=0))
    assert inter_bytes(formula, Kind.REDUCE_SCATTER, WORLD, 1024, 4) == [0, 2496, 0, 2496]
    assert inter_bytes(on_isthmus(FLAT), Kind.REDUCE_SCATTER, WORLD, 1024, 4) == [0, 3072, 0, 3072]


def test_below_min_elements_reductions_are_plain_and_gathers_are_the_world_backends():
    formula, below = on_isthmus(TAGC), 65532
    assert inter_bytes(formula, Kind.REDUCE_SCATTER, WORLD, below) == [48 + 32768] * 4
    assert inter_bytes(formula, Kind.ALL_GATHER, WORLD, below) == [0, below * 3 // 2, 0, below * 3 // 2]


def test_all_reduce_along_a_rail():
    # 131072 elements are 65536 for each of two owners: 1024 blocks of 64, and 103 rows.
    packet = 64 + 128 + 8192 + 103 * 64 * 4
    assert inter_bytes(on_isthmus(TAGC), Kind.ALL_REDUCE, (1, 3), 131072) == [2 * packet] * 2
    padded = [2 * (48 + 65536)] * 2  # below min_elements, padded to even
    assert inter_bytes(on_isthmus(TAGC), Kind.ALL_REDUCE, (1, 3), 65535) == padded
    four_nodes = on_isthmus(NONE, ranks_per_node=1)
    assert inter_bytes(four_nodes, Kind.ALL_REDUCE, WORLD, 131072) == [2 * 3 * (48 + 65536)] * 4


def test_all_reduce_over_several_ranks_a_node():
    # 131073 elements are 32769 a chunk, whose packet is filled up to a multiple of 8.
    assert inter_bytes(on_isthmus(NONE), Kind.ALL_REDUCE, WORLD, 131073) == [2 * (48 + 65544)] * 4


def test_in_a_single_tier_an_all_reduce_is_a_float32_ring_and_a_gather_in_two_tiers():
    # The figures of AllReduce.InASingleTierItIsExactAndCounted in tests/cpp/test_all_reduce.cpp.
    formula = on_isthmus(FLAT)
    ring, gather = 3 * 1000 * 4, 48 + 2000
    assert inter_bytes(formula, Kind.ALL_REDUCE, WORLD, 4000) == [gather, ring + gather] * 2
    assert intra_bytes(formula, Kind.ALL_REDUCE, WORLD, 4000) == [ring + 2 * gather, 2 * gather] * 2


def test_in_a_single_tier_with_one_rank_a_node_plain_chunks_go_straight_to_their_owners_in_their_own_type():
    formula = on_isthmus(FLAT, ranks_per_node=1)
    assert inter_bytes(formula, Kind.REDUCE_SCATTER, WORLD, 4000) == [3 * 1000 * 2] * 4
    assert inter_bytes(formula, Kind.ALL_REDUCE, WORLD, 4000) == [3 * 1000 * 2 + 3 * (48 + 2000)] * 4


def test_an_index_of_four_bits_is_four_times_as_long():
    one, four = on_isthmus(FLAT), on_isthmus(dataclasses.replace(FLAT, index_bits=4))
    difference = [
        long - short
        for short, long in zip(
            inter_bytes(one, Kind.REDUCE_SCATTER, WORLD, 131072),
            inter_bytes(four, Kind.REDUCE_SCATTER, WORLD, 131072),
            strict=True,
        )
    ]
    assert difference == [0, 3 * 2 * 3 * 4096, 0, 3 * 2 * 3 * 4096]


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
    for formula in (gloo_formula(2), on_isthmus(TAGC), on_isthmus(FLAT)):
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
