"""Strategy full: weights that cross as differences, by hand from docs/algorithms.md and docs/weights.md."""

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

MEASURED = {1e-5: 0.34, 3e-5: 0.67, 1e-4: 1.33, 3e-4: 2.32, 6e-4: 3.13, 1e-3: 3.80}


@pytest.mark.parametrize(
    ("lr", "bits"),
    [
        *MEASURED.items(),
        (math.sqrt(1e-5 * 3e-5), (0.34 + 0.67) / 2),
        (math.sqrt(3e-5 * 1e-4), (0.67 + 1.33) / 2),
        (math.sqrt(6e-4 * 1e-3), (3.13 + 3.80) / 2),
        (1e-3 * (1e-3 / 6e-4), 3.80 + (3.80 - 3.13)),  # beyond: along the last two
        (1e-5 / 3, 0.34 - (0.67 - 0.34)),  # 0.01
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
