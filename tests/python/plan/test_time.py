"""Time of a step: stages and pipelines by hand, and what must hold for any links: bounds, monotony, crossovers."""

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.plan.assumptions import (
    CodecSpeed,
    CodecSpeeds,
    Compute,
    Links,
    codec_speeds,
    compute_of_tokens,
    parse_speed_gbit_s,
)
from isthmus.plan.packets import WireOptions
from isthmus.plan.pipeline import Resource, Stage, UnitWork, passes_s, stage_of
from isthmus.plan.placement import Cluster
from isthmus.plan.scan import EQUAL_SHARE, Comparison
from isthmus.plan.step import Setting, StepPlan
from isthmus.plan.strategies import STRATEGIES, strategies_named
from isthmus.plan.volumes import Hop, world_formula
from python.plan.models import units_of_sizes

BETWEEN, WITHIN = Resource.BETWEEN, Resource.WITHIN
LINKS = Links(inter_gbit_s=8, intra_gbit_s=80, inter_latency_us=10, intra_latency_us=1)
CODECS = CodecSpeeds(
    {
        "none": CodecSpeed(8, 8),
        "tagc": CodecSpeed(4, 2),
        "quant": CodecSpeed(5, 6),
        "delta": CodecSpeed(2, 9),
    },
    "made up",
)


@pytest.mark.parametrize(
    ("hop", "stage"),
    [
        (Hop(steps=3, inter_bytes=10**9), Stage((BETWEEN,), 1.0 + 30e-6)),
        (Hop(steps=2, intra_bytes=10**9), Stage((WITHIN,), 0.1 + 2e-6)),
        # A ring over nodes is as slow as its slowest edge, and loads both.
        (Hop(steps=1, inter_bytes=10**9, intra_bytes=10**9), Stage((BETWEEN, WITHIN), 1.0 + 10e-6)),
        (Hop(steps=1, inter_bytes=10**9, intra_bytes=10**11), Stage((BETWEEN, WITHIN), 10.0 + 10e-6)),
        # Codecs take their float32 elements at their own speeds.
        (Hop(codec="tagc", decoded_elements=10**9), Stage((Resource.DECODER,), 2.0)),
        (Hop(codec="none", encoded_elements=10**9), Stage((Resource.ENCODER,), 0.5)),
    ],
)
def test_a_stage_takes_its_bytes_and_its_rounds_or_its_elements(hop, stage):
    found = stage_of(hop, LINKS, CODECS)
    assert (found.resources, found.seconds) == (stage.resources, pytest.approx(stage.seconds))


def taking(resource, seconds):
    return (Stage((resource,), seconds),) if seconds else ()


def work(share, gather=0.0, scatter=0.0, all_reduce=0.0, is_root=False):
    return UnitWork(
        compute_share=share,
        is_root=is_root,
        forward_gather=taking(Resource.BETWEEN, gather),
        backward_gather=taking(Resource.BETWEEN, gather),
        reduce_scatter=taking(Resource.BETWEEN, scatter),
        all_reduce=taking(Resource.WITHIN, all_reduce),
    )


THREE = [work(20 / 22, scatter=5), *[work(1 / 22, scatter=5)] * 2]
FOUR = [work(20 / 23, scatter=5), *[work(1 / 23, scatter=5)] * 3]


@pytest.mark.parametrize(
    ("units", "input_buffers", "compute_s", "seconds"),
    [
        # Forward 1 s for each of two units, backward 2 s: all gathers but the first of each pass are hidden.
        ([work(0.5, gather=1)] * 2, 1, 6.0, 1 + 2 + 1 + 4),
        # The third gather begins with the first unit's computation, and its 5 s are over when the second's are.
        ([work(1 / 3, gather=1)] * 2 + [work(1 / 3, gather=5)], 1, 27.0, 7 + 3 + 5 + 18),
        # Gathers set the pace: 40 s of them, then the last unit computes; backward 40 s more, then the last one.
        ([work(0.25, gather=10)] * 4, 1, 12.0, 40 + 1 + 40 + 2),
        # Reductions hide behind the backward pass but for the last.
        ([work(0.5, scatter=1)] * 2, 1, 6.0, 2 + 4 + 1),
        # Root gathered 1, forward 1 + 1, root gathered again (as told), backward 2 + 2, and its reduction comes last.
        ([work(0.5, gather=1, scatter=3, is_root=True), work(0.5, scatter=3)], 1, 6.0, 1 + 2 + 1 + 4 + 6),
        # Forward 11. Backward 1, 1 and 20, each reduced behind the one before. FSDP2 computes the 20 only after the
        # first reduction has ended and the second begun (at 6), DDP and two buffers at once (at 2).
        (THREE, 1, 33.0, 11 + 6 + 20 + 5),
        (THREE, None, 33.0, 11 + 2 + 20 + 5),
        (THREE, 2, 33.0, 11 + 2 + 20 + 5),
        # Forward 11.5. Gradients at 1, 2 and 3, the third begins when the first has ended (at 6): then 20.
        (FOUR, 2, 34.5, 11.5 + 6 + 20 + 5),
        (FOUR, 1, 34.5, 11.5 + 11 + 20 + 5),
        (FOUR, 3, 34.5, 11.5 + 3 + 20 + 5),
        # An all-reduce along the rail holds up no reduce-scatter: the second one ends earlier, its all-reduce waits.
        ([work(0.5, scatter=1, all_reduce=5)] * 2, 1, 6.0, 2 + 2 + 1 + 5 + 5),
    ],
)
def test_a_step_by_hand(units, input_buffers, compute_s, seconds):
    assert passes_s(units, input_buffers, compute_s) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("stages", "seconds"),
    [
        # 3 x 4 s cross without a pause, and the last is decoded twice.
        ([(BETWEEN, 2), (Resource.DECODER, 1), (BETWEEN, 2), (Resource.DECODER, 1)], 12 + 2),
        # Two are under way: the third begins when the first has ended, though nothing else uses the link.
        ([(BETWEEN, 2), (Resource.DECODER, 9), (WITHIN, 9), (Resource.ENCODER, 9)], 29 + 29),
    ],
)
def test_all_reduces_overlap(stages, seconds):
    all_reduce = tuple(Stage((resource,), stage_s) for resource, stage_s in stages)
    assert passes_s([UnitWork(1 / 3, all_reduce=all_reduce)] * 3, 2, compute_s=0) == pytest.approx(seconds)


def plans(names, sizes, nodes, ranks, backend="nccl"):
    model = units_of_sizes(sizes)
    model = dataclasses.replace(
        model, units=(dataclasses.replace(model.units[0], is_root=len(sizes) > 1), *model.units[1:])
    )
    setting = Setting(model, Cluster(nodes, ranks), world_formula(backend, ranks))
    return [StepPlan(setting, strategy) for strategy in strategies_named(names, WireOptions(min_elements=1000))]


SPEEDS = st.floats(0.01, 10_000)
SETTINGS = st.tuples(
    st.sampled_from(sorted(STRATEGIES)).map(lambda name: [name]),
    st.lists(st.integers(1, 10**8), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from(["nccl", "gloo"]),
)


@given(SETTINGS, SPEEDS, SPEEDS, SPEEDS, st.floats(0, 100))
def test_a_faster_link_never_makes_a_step_longer(setting, slow, fast, intra, compute_s):
    (plan,) = plans(*setting)
    slow, fast = sorted((slow, fast))
    times = [plan.time(Links(speed, intra), CODECS, Compute(compute_s, "")) for speed in (slow, fast)]
    assert times[1].step_s <= times[0].step_s * (1 + 1e-9)
    assert times[1].serial_s <= times[0].serial_s * (1 + 1e-9)
    faster_within = plan.time(Links(slow, intra * 2), CODECS, Compute(compute_s, ""))
    assert faster_within.step_s <= times[0].step_s * (1 + 1e-9)


@given(SETTINGS, SPEEDS, SPEEDS, st.floats(0, 100))
def test_overlap_is_no_slower_than_none_and_no_faster_than_the_link(setting, inter, intra, compute_s):
    (plan,) = plans(*setting)
    time = plan.time(Links(inter, intra, 3, 2), CODECS, Compute(compute_s, ""))
    assert time.step_s <= time.serial_s * (1 + 1e-9)
    at_least = [compute_s, sum(plan.node_bytes.values()) * 8 / (inter * 1e9)]
    assert time.step_s >= max(at_least) * (1 - 1e-9)
    assert time.serial_s == pytest.approx(compute_s + sum(time.phases.values()))


def test_micro_batches_share_the_compute_and_follow_one_another():
    (one,) = plans(["hsdp"], [10**8], 2, 1)
    each, last = (
        StepPlan(dataclasses.replace(one.setting, micro_batches=4), strategies_named([name], WireOptions())[0])
        for name in ("hsdp", "hsdp-last")
    )
    links, compute = Links(8, 1e5, 0, 0), Compute(12.0, "")
    reduced_s = 2 * 10**8 * 8 / 8e9  # bfloat16, behind the backward pass of the only unit
    for plan, reductions in ((one, 1), (each, 4), (last, 1)):
        time = plan.time(links, CODECS, compute)
        assert (time.compute_s, time.phases["reduction"]) == (12, pytest.approx(reductions * reduced_s))
        assert time.step_s == pytest.approx(12 + reductions * reduced_s, rel=1e-3)


def comparison(names=("fsdp", "hsdp", "none", "tagc", "hsdp-tagc"), inter=25, memory_bytes=None, codecs=None):
    chosen = plans(list(names), [5 * 10**7] + [10**8] * 4, 2, 4)
    links = Links(inter, 2000)
    return Comparison(chosen, links, codecs or codec_speeds("gpu"), Compute(0.2, ""), memory_bytes)


def test_crossovers_are_where_the_preferred_strategy_changes_and_nowhere_else():
    found = comparison()
    edges = [1.0, *(crossover.inter_gbit_s for crossover in found.crossovers), 800.0]
    assert len(edges) >= 3
    assert edges == sorted(edges)
    for crossover in found.crossovers:
        sides = [found.preferred(found.candidates, crossover.inter_gbit_s * factor) for factor in (0.999, 1.001)]
        assert [side.strategy.name for side in sides] == [crossover.below, crossover.above]
    for crossover, following in pairwise(found.crossovers):
        assert crossover.above == following.below
    for low, high in pairwise(edges):
        middles = [low * 1.01, math.sqrt(low * high), high / 1.01]
        assert len({found.preferred(found.candidates, middle).strategy.name for middle in middles}) == 1


def test_at_equal_times_the_strategy_that_asks_for_less_is_preferred():
    found = comparison()
    assert found.preferred(found.candidates, 1e5).strategy.name == "fsdp"  # everything hides: no codec, least memory
    assert found.preferred(found.candidates, 1.0).strategy.name == "hsdp-tagc"
    order = [plan.strategy.name for plan in found.candidates]
    assert order.index("hsdp") < order.index("none") < order.index("tagc")
    times = {plan.strategy.name: found.time(plan).step_s for plan in found.plans}
    assert times[found.winner.strategy.name] <= min(times.values()) * (1 + EQUAL_SHARE)


def test_what_does_not_fit_cannot_win():
    everything = comparison(inter=1)
    assert everything.winner.strategy.name == "hsdp-tagc"
    limit = everything.winner.memory.total - 1
    limited = comparison(inter=1, memory_bytes=limit)
    assert limited.winner.memory.total <= limit
    assert not limited.fits(limited.plans[-1])
    nothing = comparison(memory_bytes=1)
    assert (nothing.winner, nothing.crossovers) == (None, [])


@pytest.mark.parametrize(
    ("text", "speed"),
    [("25gbit", 25), ("25", 25), ("200mbit", 0.2), ("1.6tbit", 1600), ("400 Gbit", 400), ("100kbit", 1e-4)],
)
def test_human_readable_speeds_are_parsed(text, speed):
    assert parse_speed_gbit_s(text, "--inter") == pytest.approx(speed)


@pytest.mark.parametrize("text", ["", "fast", "-1gbit", "0", "25gb", "nan", "inf", "1e9gbit", "10kbit", "1e99"])
def test_a_bad_speed_is_named_with_the_accepted_range(text):
    with pytest.raises(ValueError, match=r"--inter '.*': expected a number .* from 100kbit to 1000tbit"):
        parse_speed_gbit_s(text, "--inter")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Links(0, 1), "inter_gbit_s 0: expected 0.0001 to 1e"),
        (lambda: Links(1, 1, -1), "inter_latency_us -1: expected 0 to 1e"),
        (lambda: Compute(-1, ""), "compute seconds -1: expected 0"),
        (lambda: compute_of_tokens(1, 0, 1, 1), "tokens 0: expected 1 to"),
        (lambda: compute_of_tokens(1, 1, 0, 1), "peak_tflops 0: expected 0.001"),
        (lambda: compute_of_tokens(1, 1, 1, 1.5), "mfu 1.5: expected 0.001 to 1"),
        (lambda: codec_speeds("fast"), "codec speed 'fast': expected cpu, gpu, or GB/s"),
        (lambda: codec_speeds("0"), "codec speed '0': expected .*encode_gb_s 0: expected 0.001"),
    ],
)
def test_absurd_assumptions_are_refused_with_value_and_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_compute_is_six_operations_a_parameter_and_token():
    compute = compute_of_tokens(10**9, 1000, 100, 0.5)
    assert compute.seconds == pytest.approx(6e12 / 50e12)


def test_codec_speeds_are_measured_ones_given_ones_or_assumed_and_say_which():
    assert codec_speeds("100/150").by_codec["tagc"] == CodecSpeed(100, 150)
    assert codec_speeds("100").by_codec["tagc"] == CodecSpeed(100, 100)
    assert codec_speeds("gpu").source.startswith("assumed")
    assert "docs/quant.md" in codec_speeds("cpu").source
