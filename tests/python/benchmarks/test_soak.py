"""`isthmus bench soak`: the checks that it makes can fail, and a short run from end to end."""

from collections import Counter

import pytest
import torch.distributed as dist

from isthmus.benchmarks.soak.calls import (
    GRADIENTS,
    MIN_ELEMENTS,
    NUM_ELEMENTS,
    OPTIONS,
    WEIGHTS,
    Call,
    Issued,
    Pair,
    WrongResult,
    calls_of_step,
)
from isthmus.benchmarks.soak.run import MOST_GROWTH, _report
from python.benchmarks.bench_cli import run
from support import ranks
from support.checks import finish


def test_steps_are_equal_for_equal_seeds_and_cover_everything():
    steps = [calls_of_step(1, step, 2) for step in range(500)]
    assert steps == [calls_of_step(1, step, 2) for step in range(500)]
    assert steps != [calls_of_step(2, step, 2) for step in range(500)]
    assert all(len({call.unit for call in calls}) == len(calls) > 0 for calls in steps)
    calls = [call for calls in steps for call in calls]
    assert all(call.root < 2 for call in calls)
    assert {call.group for call in calls} == set(OPTIONS)
    assert {call.num_elements for call in calls} == set(NUM_ELEMENTS)
    assert len({call.kind for call in calls}) == 10
    for kind in (*GRADIENTS, WEIGHTS):
        assert len({(call.group, call.asynchronous) for call in calls if call.kind == kind}) == 3 * 2


def damage_results(rank: int, world_size: int) -> None:
    ranks.init("gloo")
    import isthmus

    options = isthmus.Options(min_elements=MIN_ELEMENTS, log="error", **OPTIONS["default"])
    pair = Pair(dist.new_group(backend="isthmus", pg_options=options), dist.new_group(backend="gloo"))
    for kind in ("all_reduce", "all_gather", WEIGHTS, "reduce_scatter", *GRADIENTS):
        call = Call(kind, "default", "float32", NUM_ELEMENTS[1], "sum", 0, asynchronous=True)
        for seed in range(3):
            Issued(call, pair, seed).finish()
        issued = Issued(call, pair, 3)
        for work in issued._works:
            work.wait()
        issued._works.clear()
        issued._output[17] += 1
        with pytest.raises(WrongResult, match=f"{kind} .* in group 'default', asynchronous: 1 of "):
            issued.finish()
    statistics = isthmus.stats(pair.isthmus)
    assert statistics["compressed_calls"] == 8
    assert statistics["weights"]["gathers"] == 4
    assert statistics["weights"]["whole"] == {"the first gather": 1}
    finish()


@pytest.mark.processes
def test_a_damaged_element_is_found():
    ranks.run(damage_results, 4, env={"ISTHMUS_NODES": "2x2"})


USUAL = {"memory_bytes": 1 << 30, "threads": 5, "descriptors": 9}


@pytest.mark.parametrize(
    ("name", "more"), [("memory_bytes", 0), ("memory_bytes", 1), ("threads", 1), ("descriptors", 1)]
)
def test_growth_is_found_and_named(name: str, more: int) -> None:
    last = USUAL | {name: USUAL[name] + MOST_GROWTH[name] + more}
    warming_up = dict.fromkeys(USUAL, 0)
    samples = [[warming_up, warming_up]] * 10 + [[USUAL, USUAL]] * 15 + [[USUAL, last]] * 15
    found = _report(Counter(), 1.0, samples).faults()
    assert len(found) == more
    assert all(text.startswith("rank 1 has") and name.replace("_", " ") in text for text in found)


@pytest.mark.processes
def test_a_short_soak(tmp_path):
    code, out, err = run("soak", "--steps", 6, "--logs", tmp_path)
    assert code == 0, err
    assert "all verified" in out
