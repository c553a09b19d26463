"""From placement to collectives and bytes, by hand and for any model; and strategy pp, a stage on each node."""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.model.layout import Parameter
from isthmus.plan.assumptions import Compute, Links, codec_speeds
from isthmus.plan.memory import scratch_bytes
from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import DDP, FSDP, FSDP_NODE, HSDP, Cluster, ElementBytes, Phase, Scope, operations_of
from isthmus.plan.step import PipelinePlan, Setting, StepPlan
from isthmus.plan.strategies import PIPELINE, STRATEGIES, strategies_named
from isthmus.plan.units import Model, Unit, preset
from isthmus.plan.volumes import Collective, IsthmusFormula, Kind, world_formula
from python.plan.models import units_of_sizes

EVERYTHING = WireOptions(codec="tagc", min_elements=0)
NONE = WireOptions(codec="none")
FLAT = WireOptions(codec="tagc", tiers="flat", min_elements=0)
BYTES = ElementBytes(gathered=2, reduced=4)
UNIT = Unit("u", (Parameter("w", (7, 3)), Parameter("b", (7,))))


def shown(placements, nodes=2, ranks_per_node=4, unit=UNIT):
    operations = operations_of(unit, placements, Cluster(nodes, ranks_per_node), BYTES)
    return [
        (str(op.phase), str(op.call.kind), str(op.scope), op.call.num_elements, op.call.element_bytes)
        for op in operations
    ]


def test_parameters_kept_after_the_forward_pass_save_the_gather_before_the_backward_pass():
    assert [row[0] for row in shown(dataclasses.replace(FSDP, kept=Scope.RANK))] == ["forward", "reduction"]
    assert shown(DDP) == [("reduction", "all_reduce", "world", 28, 4)]  # without padding
    assert shown(FSDP_NODE)[1] == ("backward", "all_gather", "node", 32, 2)


def test_groups_of_one_rank_make_no_collectives():
    assert [row[2] for row in shown(HSDP, nodes=2, ranks_per_node=1)] == ["rail"]
    assert [row[2] for row in shown(HSDP, nodes=1, ranks_per_node=2)] == ["node"] * 3
    assert shown(FSDP, nodes=1, ranks_per_node=1) == []


def plan(name, model, nodes=2, ranks_per_node=2, backend="nccl", wire=EVERYTHING, micro_batches=1):
    (strategy,) = strategies_named([name], wire)
    world = world_formula(backend, ranks_per_node)
    setting = Setting(model, Cluster(nodes, ranks_per_node), world, micro_batches=micro_batches)
    return StepPlan(setting, strategy)


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
    alike = found.strategy.placements, found.strategy.defers
    (plain,) = [s for s in STRATEGIES.values() if s.is_plain and (s.placements, s.defers) == alike]
    own, other = found.operations, plan(plain.name, model, 1, ranks, backend).operations
    assert own == other
    assert found.memory == plan(plain.name, model, 1, ranks, backend).memory


@given(NAMES, MODELS, st.integers(1, 4), RANKS)
def test_memory_is_that_of_the_placements(name, model, nodes, ranks):
    found = plan(name, model, nodes, ranks)
    memory = found.memory
    placement = found.strategy.placements.parameters
    parts = {Scope.RANK: 1, Scope.NODE: ranks, Scope.WORLD: nodes * ranks}[placement]
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


@pytest.mark.parametrize("name", ["fsdp", "fsdp-node", "hsdp", "ddp", "quant", "hsdp-quant"])
def test_micro_batches_multiply_what_each_of_them_sends(name):
    once = plan(name, BIG).node_bytes
    each, last = (plan(each, BIG, micro_batches=5).node_bytes for each in (name, f"{name}-last"))
    for phase in Phase:
        assert each[phase] == 5 * once[phase]
        assert last[phase] == (1 if phase is Phase.REDUCTION else 5) * once[phase]


def test_hsdp_reduces_within_the_node_in_every_micro_batch():
    kinds = [op.call.kind for op in plan("hsdp-last", units_of_sizes([100]), micro_batches=3).operations.elements()]
    assert [kinds.count(kind) for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)] == [6, 3, 1]
    assert kinds[-1] is Kind.ALL_REDUCE


@pytest.mark.parametrize("name", ["full", "full-last"])
def test_weights_cross_in_the_first_micro_batch_alone(name):
    """As differences: the others send the headers of every second gather of a micro-batch."""
    one, three = (plan(name, BIG, micro_batches=count).node_bytes for count in (1, 3))
    assert three[Phase.FORWARD] == one[Phase.FORWARD] + 2 * one[Phase.BACKWARD]
    assert three[Phase.BACKWARD] == 3 * one[Phase.BACKWARD]


def test_what_is_deferred_is_whole_or_a_shard_of_the_node():
    """Beside everything else, which micro-batches do not change."""
    model = units_of_sizes([1000, 3000])
    for name, deferred in (("fsdp", 4000), ("quant", 4000), ("fsdp-node", 4000), ("hsdp", 2000), ("ddp", 0)):
        each, last = (plan(each, model, 3, 2, micro_batches=4).memory for each in (name, f"{name}-last"))
        assert each == plan(name, model, 3, 2).memory
        assert last == dataclasses.replace(each, deferred=2 * deferred), name


def frozen(model, *trained):
    """The model with only the first so many elements of each unit trained."""
    parts = [(Parameter("part", (elements,)),) if elements else () for elements in trained]
    units = [dataclasses.replace(unit, trained=part) for unit, part in zip(model.units, parts, strict=True)]
    return dataclasses.replace(model, units=tuple(units))


def test_what_is_frozen_is_gathered_and_neither_reduced_nor_kept_for_the_optimizer():
    model = units_of_sizes([100_000, 200_000, 300_000])
    part, whole = plan("fsdp", frozen(model, 0, 2000, 3000)), plan("fsdp", model)
    assert part.node_bytes[Phase.FORWARD] == whole.node_bytes[Phase.FORWARD]
    assert part.node_bytes[Phase.REDUCTION] * 120 == whole.node_bytes[Phase.REDUCTION]
    assert [op.call.num_elements for op in part.operations if op.call.kind is Kind.REDUCE_SCATTER] == [2000, 3000]
    memory = part.memory
    assert (memory.gradients, memory.optimizer) == (5000 // 4 * 4, 5000 // 4 * 8)
    assert memory.parameters == (600_000 - 5000) // 4 * 2 + 5000 // 4 * 4  # frozen ones as they are gathered
    assert memory.gathered == whole.memory.gathered
    assert memory.unreduced == 5000 * 2


def test_of_frozen_weights_as_differences_only_headers_cross():
    wire = WireOptions(min_elements=0, weight_bits=16)
    model = units_of_sizes([100_000, 200_000])
    headers = 2 * 64  # of two ranks, in each gather
    sent = plan("full", frozen(model, 0, 20_000), wire=wire).node_bytes
    assert sent[Phase.FORWARD] == 2 * headers + 2 * 20_000 // 4 * 2
    assert plan("full", model, wire=wire).node_bytes[Phase.FORWARD] == 2 * headers + 2 * 300_000 // 4 * 2


def is_reduced_lossily(found):
    wire = found.strategy.wire
    kinds = {op.call.kind for op in found.operations}
    return Kind.REDUCE_SCATTER in kinds or (Kind.ALL_REDUCE in kinds and wire.tiers == "two")


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


CODECS = codec_speeds("gpu")
BLOCK = (Parameter("w", (10, 100)),)
ROOT = Unit("root", (Parameter("embedding", (500,)), Parameter("norm", (10,)), Parameter("head", (500,))), is_root=True)


def pipeline(nodes=2, ranks=1, layers=4, micro_batches=1, tokens=1000.0, width=8):
    model = Model("m", (ROOT, *(Unit(f"layer {n}", BLOCK) for n in range(layers))), width)
    setting = Setting(model, Cluster(nodes, ranks), world_formula("nccl", ranks), micro_batches=micro_batches)
    return PipelinePlan(setting, PIPELINE, tokens)


def seconds(plan, compute_s, inter=1e5):
    return plan.time(Links(inter, 1e5, 0, 0), CODECS, Compute(compute_s, "")).step_s


@pytest.mark.parametrize(("nodes", "ranks", "per_node"), [(2, 1, 1 / 2), (2, 8, 1 / 2), (4, 2, 3 / 4)])
def test_activations_of_all_tokens_cross_each_cut_and_their_gradients_come_back(nodes, ranks, per_node):
    plan = pipeline(nodes, ranks)
    cut = nodes * ranks * 1000 * 8 * 2  # tokens of all ranks, of 8 elements of bfloat16
    assert plan.cut_bytes == cut
    assert plan.node_bytes == {Phase.FORWARD: cut * per_node, Phase.BACKWARD: cut * per_node, Phase.REDUCTION: 0}


@pytest.mark.parametrize(
    ("nodes", "micro_batches", "step_s"),
    [
        # Ranks compute 8 s a step each. A stage has as much to do for all tokens, and waits for 1 or 3 parts.
        (2, 1, 8 * 3 / 2),
        (2, 8, 8 * 17 / 16),
        (4, 1, 8 * 7 / 4),
    ],
)
def test_a_stage_waits_while_the_first_micro_batch_comes_and_goes(nodes, micro_batches, step_s):
    plan = pipeline(nodes, micro_batches=micro_batches)
    assert seconds(plan, 8) == pytest.approx(step_s, rel=1e-6)
    assert plan.bubble == pytest.approx(1 - 8 / step_s)


def test_layers_that_do_not_divide_are_computed_by_the_busiest_stage():
    assert seconds(pipeline(layers=3), 9) == pytest.approx(12 * 3 / 2, rel=1e-6)  # two layers of three, for all tokens


def test_a_slow_link_hides_behind_compute_or_sets_the_pace():
    """Two nodes of one rank, 4 micro-batches: each sends 8 million bits and gets as many."""
    plan = pipeline(tokens=1e6 / 8, micro_batches=2)
    link = 0.001  # Gbit/s: 8 s a micro-batch
    assert seconds(plan, 40, link) == pytest.approx(2 * 10 + 2 * 8 + 3 * 10)
    assert seconds(plan, 4, link) == pytest.approx(2 * 1 + 2 * 8 + 3 * 8)
    three = pipeline(3, tokens=1e6 / 8, micro_batches=2)  # 6 micro-batches; the middle one sends both ways
    share = 2 / 4 * 3  # two layers of four, for three ranks' tokens
    assert seconds(three, 4, link) == pytest.approx(3 * 4 * share / 6 + 4 * 8 + 5 * 16)


def test_a_rank_holds_its_stage_and_shards_it_within_the_node():
    stage = 2 * 1000 + 510  # two layers, and head and norm
    assert pipeline(2, 1).memory.parameters == stage * 4
    assert pipeline(2, 2).memory.parameters == stage // 2 * 4
    assert pipeline(4, 1).memory.parameters == (1000 + 510) * 4
    assert pipeline(1, 1).memory.parameters == (4000 + 1010) * 4


def test_one_stage_is_fsdp_within_its_node():
    plan = pipeline(1, 2)
    assert (sum(plan.node_bytes.values()), plan.bubble) == (0, 0)
    assert seconds(plan, 8) == pytest.approx(8, rel=1e-6)


def test_more_stages_than_layers_and_an_unknown_width_are_named():
    with pytest.raises(ValueError, match=r"pp: stages \(one a node\) 5: expected 1 to 4"):
        pipeline(5)
    with pytest.raises(ValueError, match="pp: the elements of a token between two blocks are not known: give --width"):
        pipeline(width=None)


def test_presets_know_their_width():
    assert preset("llama3-70b").width == 8192
