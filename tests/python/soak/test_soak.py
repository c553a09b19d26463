"""The soak: steps of mixed collectives in several groups at once, every result verified, memory flat.

SOAK_STEPS=10000 pytest tests/python/soak runs more of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest
import torch.distributed as dist

import isthmus
from python.soak.calls import (
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
from support import ranks
from support.checks import finish

STEPS = int(os.environ.get("SOAK_STEPS", "20"))
#: Beside a usual test's time, for each step. A usual one takes a twentieth of it.
SLOWEST_STEP_S = 3
#: What a rank may have more of than after warming up, by name: between the medians of the first and last quarter of
#: samples. In short runs memory has the residuals of units that have not been called before. A group asks the store
#: about faults when an operation takes long, over a connection that it then keeps; so a slow moment late in the run may
#: add one thread and one descriptor a group.
MOST_GROWTH = {"memory_bytes": 32 << 20, "threads": 6, "descriptors": 6}
NUM_SAMPLES = 40


def resources() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def grown(samples: list[dict[str, int]]) -> list[str]:
    """What has grown by more than it may, since allocators, caches and lazily made connections settled."""
    warm = samples[len(samples) // 4 :]
    quarter = max(1, len(warm) // 4)
    growth = {
        name: median(sample[name] for sample in warm[-quarter:]) - median(sample[name] for sample in warm[:quarter])
        for name in MOST_GROWTH
    }
    return [
        f"{growth[name]:.0f} more {name} than after warming up" for name in growth if growth[name] > MOST_GROWTH[name]
    ]


def make_pairs(world_size: int, ranks_per_node: int) -> dict[str, Pair]:
    """This rank's group of each name; those of one name share no rank."""
    everyone = list(range(world_size))
    groups = {
        "default": [everyone],
        "plain": [everyone],
        "rails": [everyone[local_index::ranks_per_node] for local_index in range(ranks_per_node)],
        "nodes": [everyone[first : first + ranks_per_node] for first in range(0, world_size, ranks_per_node)],
        "all but the last": [everyone[:-1]],
        "all but the first": [everyone[1:]],
    }
    pairs = {}
    for name, ranks_of_groups in groups.items():
        options = isthmus.Options(min_elements=MIN_ELEMENTS, log="error", **OPTIONS[name])
        group, _ = dist.new_subgroups_by_enumeration(ranks_of_groups, backend="isthmus", pg_options=options)
        gloo_group, _ = dist.new_subgroups_by_enumeration(ranks_of_groups, backend="gloo")
        if group is not None:
            pairs[name] = Pair(group, gloo_group)
    return pairs


def soak(rank: int, world_size: int, steps: int, seed: int = 1) -> list[str]:
    """Run the steps, and return what has grown. Raises WrongResult at the first wrong result."""
    ranks.init("gloo")
    pairs = make_pairs(world_size, ranks_per_node=2)
    samples = []
    for step in range(steps):
        issued = [  # all of them before any is waited for, in groups that share ranks
            Issued(call, pairs[call.group], seed + step)
            for call in calls_of_step(seed, step, smallest_group=2)
            if call.group in pairs
        ]
        for call in issued:
            call.finish()
        if step % max(1, steps // NUM_SAMPLES) == 0:
            samples.append(resources())
    finish()
    return grown(samples)


@pytest.mark.processes
def test_a_soak():
    timeout_s = ranks.HANG_S + STEPS * SLOWEST_STEP_S
    assert ranks.run(soak, 4, STEPS, env={"ISTHMUS_NODES": "2x2"}, timeout_s=timeout_s) == [[]] * 4


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


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("name", MOST_GROWTH)
def test_growth_is_found_and_named(name: str, more: int) -> None:
    last = USUAL | {name: USUAL[name] + MOST_GROWTH[name] + more}
    found = grown([dict.fromkeys(USUAL, 0)] * 10 + [USUAL] * 15 + [last] * 15)
    assert len(found) == more
    assert all(name in text for text in found)
