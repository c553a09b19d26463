"""From placement to collectives and bytes: by hand, against the document's table, and what must hold for any model."""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.plan.memory import scratch_bytes
from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import DDP, FSDP, FSDP_NODE, HSDP, Cluster, ElementBytes, Phase, Placement, operations_of
from isthmus.plan.step import Setting, StepPlan
from isthmus.plan.strategies import STRATEGIES, strategies_named
from isthmus.plan.units import Unit
from isthmus.plan.volumes import Collective, IsthmusFormula, Kind, world_formula
from isthmus.units.layout import Parameter
from python.plan.models import units_of_sizes

EVERYTHING = WireOptions(codec="tagc", min_elements=0)
NONE = WireOptions(codec="none")
FLAT = WireOptions(codec="tagc", tiers="flat", min_elements=0)
BYTES = ElementBytes(gathered=2, reduced=4)
UNIT = Unit("u", (Parameter("w", (7, 3)), Parameter("b", (7,))))


def shown(placements, nodes=2, ranks_per_node=4, unit=UNIT):
    operations = operations_of(unit, placements, Cluster(nodes, ranks_per_node), BYTES)
    return [(str(op.phase), str(op.kind), str(op.scope), op.num_elements, op.element_bytes) for op in operations]


def test_parameters_kept_after_the_forward_pass_save_the_gather_before_the_backward_pass():
    assert [row[0] for row in shown(dataclasses.replace(FSDP, kept=Placement.REPLICATED))] == ["forward", "reduction"]
    assert shown(DDP) == [("reduction", "all_reduce", "world", 28, 4)]  # without padding
    assert shown(FSDP_NODE)[1] == ("backward", "all_gather", "node", 32, 2)


def test_groups_of_one_rank_make_no_collectives():
    assert [row[2] for row in shown(HSDP, nodes=2, ranks_per_node=1)] == ["rail"]
    assert [row[2] for row in shown(HSDP, nodes=1, ranks_per_node=2)] == ["node"] * 3
    assert shown(FSDP, nodes=1, ranks_per_node=1) == []


def plan(name, model, nodes=2, ranks_per_node=2, backend="nccl", wire=EVERYTHING):
    (strategy,) = strategies_named([name], wire)
    world = world_formula(backend, ranks_per_node)
    return StepPlan(Setting(model, Cluster(nodes, ranks_per_node), world), strategy)


def node_bytes(*arguments, **keywords):
    return sum(plan(*arguments, **keywords).node_bytes.values())


BIG = units_of_sizes([2**22] * 4)


@pytest.mark.parametrize(
    ("strategy", "backend", "expected"),
    [
        ("fsdp", "nccl", Fraction(9, 4)),
        ("fsdp", "gloo", Fraction(3)),
        ("fsdp-node", "nccl", Fraction(3, 2)),
        ("none", "nccl", Fraction(3, 2)),
        ("hsdp", "nccl", Fraction(1)),
        ("hsdp-none", "nccl", Fraction(1)),
        ("ddp", "nccl", Fraction(3, 2)),
    ],
)
def test_a_step_sends_what_the_document_says(strategy, backend, expected):
    """In P e, the model in bfloat16, at N = L = 2: docs/algorithms.md, "A training step"."""
    whole = 2 * BIG.num_parameters
    headers = 48 * 4 * 8 * 8 if STRATEGIES[strategy].wire else 0  # of 8 segments at most
    assert expected * whole <= node_bytes(strategy, BIG, backend=backend) <= expected * whole + headers


def test_phases_add_up_and_gradients_alone_are_compressed():
    exact, lossy = plan("none", BIG).node_bytes, plan("tagc", BIG).node_bytes
    assert exact[Phase.FORWARD] == lossy[Phase.FORWARD] == exact[Phase.BACKWARD] == BIG.num_parameters
    # A bit for the index and a tenth of four bytes for the sketch, of the 16 bits of a bfloat16.
    assert lossy[Phase.REDUCTION] / exact[Phase.REDUCTION] == pytest.approx((1 + 3.2) / 16, rel=0.02)


def test_fsdp2_keeps_its_root_gathered():
    units = tuple(dataclasses.replace(unit, is_root=index == 0) for index, unit in enumerate(BIG.units))
    rooted = dataclasses.replace(BIG, units=units)
    backward = plan("fsdp", BIG).node_bytes[Phase.BACKWARD]
    assert plan("fsdp", rooted).node_bytes[Phase.BACKWARD] == backward * 3 // 4
    assert plan("fsdp-node", rooted).node_bytes[Phase.BACKWARD] == 0


MODELS = st.lists(st.integers(1, 300_000), min_size=1, max_size=4).map(units_of_sizes)
NAMES = st.sampled_from(sorted(STRATEGIES))
RANKS = st.integers(1, 5)
BACKENDS = st.sampled_from(["nccl", "gloo"])


@given(NAMES, MODELS, st.integers(1, 8), RANKS, BACKENDS)
@example("hsdp-quant", units_of_sizes([193]), 6, 2, "nccl")
def test_more_nodes_send_less_in_all_by_the_padding_of_packets_at_most(name, model, nodes, ranks, backend):
    """A packet is a multiple of 64 bytes. There is one from each rank to each other node, and one of an all-reduce's
    result."""
    padding = 64 * 2 * len(model.units) * nodes * ranks * (nodes - 1) if STRATEGIES[name].wire else 0
    fewer = nodes * node_bytes(name, model, nodes, ranks, backend)
    assert fewer <= (nodes + 1) * node_bytes(name, model, nodes + 1, ranks, backend) + padding


@given(NAMES, MODELS, RANKS, BACKENDS)
def test_one_node_sends_nothing_and_isthmus_is_the_ordinary_backend(name, model, ranks, backend):
    found = plan(name, model, 1, ranks, backend)
    assert sum(found.node_bytes.values()) == 0
    (plain,) = [s for s in STRATEGIES.values() if s.is_plain and s.placements == found.strategy.placements]
    own, other = found.operations, plan(plain.name, model, 1, ranks, backend).operations
    assert own == other
    assert found.memory == plan(plain.name, model, 1, ranks, backend).memory


@given(NAMES, MODELS, st.integers(1, 4), RANKS)
def test_memory_is_that_of_the_placements(name, model, nodes, ranks):
    found = plan(name, model, nodes, ranks)
    memory = found.memory
    placement = found.strategy.placements.parameters
    parts = {Placement.REPLICATED: 1, Placement.NODE_SHARDED: ranks, Placement.SHARDED: nodes * ranks}[placement]
    for num_bytes, each in ((memory.parameters, 4), (memory.gradients, 4), (memory.optimizer, 8)):
        least = -(-model.num_parameters // parts) * each
        assert least <= num_bytes <= least + each * len(model.units)
    keeps_residual = found.strategy.wire is not None and found.strategy.wire.keeps_residual
    assert (memory.residuals > 0) == (keeps_residual and nodes > 1 and is_reduced_lossily(found))
    assert memory.total == sum(dataclasses.astuple(memory))


def test_two_units_are_gathered_at_once_and_a_part_of_what_is_kept():
    model = units_of_sizes([100, 400, 200, 300])
    assert plan("fsdp", model, 2, 2).memory.gathered == 2 * (400 + 300)
    assert plan("hsdp", model, 2, 2).memory.gathered == 2 * (400 + 300)
    assert plan("fsdp-node", model, 2, 2).memory.gathered == 2 * (400 + 300 + 1000 // 2)
    assert plan("ddp", model, 2, 2).memory.gathered == 2 * 1000  # a copy in bf16 of what is there in float32


def test_gradients_wait_in_input_buffers_beside_those_of_the_unit_that_computes():
    model = units_of_sizes([100, 200, 300, 400])
    assert plan("fsdp", model).memory.unreduced == 2 * (400 + 300 + 200)


def is_reduced_lossily(found):
    wire = found.strategy.wire
    return any(op.kind is not Kind.ALL_GATHER and wire.tiers == "two" for op in found.operations) or any(
        op.kind is Kind.REDUCE_SCATTER for op in found.operations
    )


def test_residuals_are_those_of_the_document():
    elements = 2**22
    model = units_of_sizes([elements])
    assert plan("tagc", model, 4, 2).memory.residuals == elements // 2 * 3 // 4 * 4
    assert plan("hsdp-tagc", model, 4, 2).memory.residuals == (elements // 2 * 3 // 4 + elements // 8) * 4
    assert plan("flat-tagc", model, 4, 2).memory.residuals == elements * 4
    assert plan("none", model, 4, 2).memory.residuals == 0


@pytest.mark.parametrize(
    ("wire", "kind", "ranks", "element_bytes", "expected"),
    [
        # 4096 elements over 2 x 2 ranks: C = 1024; a packet of none has 48 + 1024 e bytes, of tagc 64 + 64 + 128 + 768.
        (NONE, Kind.REDUCE_SCATTER, 4, 4, 2 * 4096 + 4 * (48 + 4096)),
        (NONE, Kind.REDUCE_SCATTER, 4, 2, 2 * 4096 + 4 * (48 + 2048) + 4096),
        (EVERYTHING, Kind.REDUCE_SCATTER, 4, 4, 2 * 4096 + 4 * 1024),
        (NONE, Kind.ALL_GATHER, 4, 2, 2 * 2048),
        (NONE, Kind.ALL_REDUCE, 4, 4, 2 * 4096 + 4 * 4144 + 4096 + 7 * 4144),
        (NONE, Kind.ALL_REDUCE, 4, 2, 2 * 4096 + 4 * 2096 + 4096 + 7 * 2096 + 4096),
        # One rank a node, so C = 2048: the gradient is its own pieces, and the rail's all-gather its own result.
        (NONE, Kind.REDUCE_SCATTER, 2, 4, 4 * (48 + 8192)),
        (NONE, Kind.ALL_GATHER, 2, 2, 0),
        (NONE, Kind.ALL_REDUCE, 2, 4, 4 * (48 + 8192) + 8192 + 3 * (48 + 8192)),
        # In one tier: index of 128 bytes and sketch of 768 for each owner, an index that arrives, a summed sketch.
        (FLAT, Kind.REDUCE_SCATTER, 4, 4, 5 * (128 + 768)),
        (FLAT, Kind.REDUCE_SCATTER, 4, 2, 5 * (128 + 768) + 4096),
        (dataclasses.replace(FLAT, min_elements=4097), Kind.REDUCE_SCATTER, 4, 2, 4096),
    ],
)
def test_scratch_is_what_the_document_says(wire, kind, ranks, element_bytes, expected):
    call = Collective(kind, range(ranks), 4096, element_bytes)
    assert scratch_bytes(IsthmusFormula(wire, world_formula("nccl", ranks // 2)), call) == expected
    assert scratch_bytes(IsthmusFormula(wire, world_formula("nccl", ranks)), call) == 0


def test_options_reach_the_strategies_on_isthmus_but_not_their_codec_and_tiers():
    chosen = {s.name: s.wire for s in strategies_named(["fsdp", "none", "flat-tagc"], WireOptions(ratio=4.0))}
    assert chosen == {
        "fsdp": None,
        "none": WireOptions(codec="none", ratio=4.0),
        "flat-tagc": WireOptions(codec="tagc", tiers="flat", ratio=4.0),
    }
