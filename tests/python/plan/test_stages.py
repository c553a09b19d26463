"""Strategy pp, a pipeline with a stage on each node: bytes, bubble and memory by hand."""

import pytest

from isthmus.plan.assumptions import Compute, Links, codec_speeds
from isthmus.plan.placement import Cluster, Phase
from isthmus.plan.step import PipelinePlan, Setting
from isthmus.plan.strategies import PIPELINE
from isthmus.plan.units import Model, Unit, preset
from isthmus.plan.volumes import world_formula
from isthmus.units.layout import Parameter

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
