"""Formulas of bytes: each path by hand, from the documents; and strategy full, whose weights cross as differences."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.plan.assumptions import weight_bits_at
from isthmus.plan.memory import scratch_bytes
from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import Cluster, Phase
from isthmus.plan.step import Setting, StepPlan
from isthmus.plan.strategies import strategies_named
from isthmus.plan.volumes import Collective, IsthmusFormula, Kind, sent_bytes, world_formula
from python.plan.models import units_of_sizes

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


HEADER_BYTES = 64
CLUSTERS = [(2, 1), (2, 2), (3, 2), (4, 8)]
BITS = (0.0, 0.34, 1.33, 16.0, 20.0)


def plan(name, sizes, nodes, ranks_per_node, wire=None):
    (strategy,) = strategies_named([name], wire or WireOptions(min_elements=0))
    world = world_formula("nccl", ranks_per_node)
    return StepPlan(Setting(units_of_sizes(sizes), Cluster(nodes, ranks_per_node), world), strategy)


def full(sizes, nodes, ranks_per_node, bits):
    return plan("full", sizes, nodes, ranks_per_node, WireOptions(min_elements=0, weight_bits=bits))


def changed_bytes(chunk, bits):
    """What a shard in bfloat16 sends to one other node: never more than the shard itself."""
    return math.ceil(chunk * min(bits, 16) / 8)


def rounded_up(elements, ranks):
    return math.ceil(elements / ranks)


@pytest.mark.parametrize(("nodes", "local"), CLUSTERS)
@pytest.mark.parametrize("bits", BITS)
def test_a_forward_gather_sends_what_changed_and_a_backward_gather_headers(nodes, local, bits):
    elements = 100_000
    chunk, others = rounded_up(elements, nodes * local), nodes - 1
    found = full([elements], nodes, local, bits).node_bytes
    assert found[Phase.FORWARD] == local * others * (HEADER_BYTES + changed_bytes(chunk, bits))
    assert found[Phase.BACKWARD] == local * others * HEADER_BYTES
    assert found[Phase.REDUCTION] == plan("quant", [elements], nodes, local).node_bytes[Phase.REDUCTION]


@pytest.mark.parametrize(("nodes", "local"), CLUSTERS)
def test_each_rank_sends_the_same(nodes, local):
    chunk, others = 1000, nodes - 1
    formula = IsthmusFormula(
        WireOptions(min_elements=0, weights="delta", weight_bits=1.3), world_formula("gloo", local)
    )
    ranks = range(nodes * local)
    for is_repeated, expected in ((False, HEADER_BYTES + 163), (True, HEADER_BYTES)):
        call = Collective(Kind.ALL_GATHER, ranks, chunk * nodes * local, 2, is_repeated)
        sent = [sent_bytes(formula(call, rank)) for rank in ranks]
        assert sent == [(others * expected, others * expected)] * len(ranks)
        within = {sum(hop.intra_bytes for hop in formula(call, rank)) for rank in ranks}
        assert within == {nodes * (local - 1) * chunk * 2}


def test_own_shards_are_compared_and_those_of_the_other_nodes_decoded():
    formula = IsthmusFormula(WireOptions(min_elements=0, weights="delta"), world_formula("gloo", 2))
    for is_repeated, decoded in ((False, 2 * 1000), (True, 0)):
        hops = formula(Collective(Kind.ALL_GATHER, range(6), 6000, 2, is_repeated), 0)
        assert sum(hop.encoded_elements for hop in hops) == 1000
        assert sum(hop.decoded_elements for hop in hops) == decoded


@pytest.mark.parametrize(("nodes", "local"), CLUSTERS)
def test_replicas_are_the_rails_shards_of_every_unit(nodes, local):
    sizes = [100_000, 70_001]
    found = full(sizes, nodes, local, 1.3).memory
    chunks = [rounded_up(elements, nodes * local) for elements in sizes]
    assert found.replicas == sum(nodes * chunk * 2 for chunk in chunks)
    without = plan("quant", sizes, nodes, local).memory
    assert without.replicas == 0
    same = {"replicas": 0, "scratch": 0}
    assert dataclasses.replace(found, **same) == dataclasses.replace(without, **same)


def test_scratch_is_a_packet_of_ones_own_and_what_others_sent():
    wire = WireOptions(min_elements=0, weights="delta", weight_bits=1.3)
    call = Collective(Kind.ALL_GATHER, range(6), 6000, 2)
    assert scratch_bytes(IsthmusFormula(wire, world_formula("gloo", 2)), call) == 1000 * 2 + 2 * 163
    assert scratch_bytes(IsthmusFormula(wire, world_formula("gloo", 6)), call) == 0


def test_small_gathers_are_whole():
    wire = WireOptions(min_elements=6001, weights="delta")
    call = Collective(Kind.ALL_GATHER, range(6), 6000, 2)
    plain = IsthmusFormula(dataclasses.replace(wire, weights="plain"), world_formula("gloo", 2))
    delta = IsthmusFormula(wire, world_formula("gloo", 2))
    assert [delta(call, rank) for rank in range(6)] == [plain(call, rank) for rank in range(6)]
    assert plan("full", [6000], 3, 2, WireOptions(min_elements=6001)).memory.replicas == 0


# --- Bits ---

MEASURED = {1e-6: 0.06, 1e-5: 0.25, 1e-4: 1.02, 3e-4: 1.81, 1e-3: 3.03}


@pytest.mark.parametrize(
    ("lr", "bits"),
    [
        *MEASURED.items(),
        (math.sqrt(1e-6 * 1e-5), (0.06 + 0.25) / 2),
        (math.sqrt(1e-5 * 1e-4), (0.25 + 1.02) / 2),
        (math.sqrt(3e-4 * 1e-3), (1.81 + 3.03) / 2),
        (1e-3 * (1e-3 / 3e-4), 3.03 + (3.03 - 1.81)),  # beyond: along the last two
        (1e-6 / 10**0.25, 0.06 - (0.25 - 0.06) / 4),
        (1e-7, 0.0),
    ],
)
def test_between_and_beyond_bits_follow_the_logarithm(lr, bits):
    assert weight_bits_at(lr) == pytest.approx(bits, abs=1e-9)


@given(st.floats(1e-7, 1e-2), st.floats(1e-7, 1e-2))
def test_a_higher_learning_rate_never_takes_fewer_bits(lr, other):
    low, high = sorted((lr, other))
    assert 0 <= weight_bits_at(low) <= weight_bits_at(high) < 16


@pytest.mark.parametrize("lr", [0, 9e-8, 1.1e-2, -1e-4, math.nan, math.inf])
def test_learning_rates_out_of_range_are_named(lr):
    with pytest.raises(ValueError, match=r"lr \S+: expected 1e-07 to 0.01"):
        weight_bits_at(lr)
