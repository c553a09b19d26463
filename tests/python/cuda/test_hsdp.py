"""HSDP's all-reduces on the fake GPU: what is ordered, what overlaps, and how long a step is over one link."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus
from isthmus.model import automatic
from isthmus.plan.pipeline import Resource, Stage, UnitWork, passes_s
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checkpoints import OwnReduceScatter
from support.checks import finish
from support.gpu_trace import Trace, Work, note, traced

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
UNITS = 4
FEATURES = 64
OPTIONS: dict[str, Any] = {"nodes": "2x2", "min_elements": 0, "segments": 1}


def read_before(original: Callable[..., int | None]) -> Callable[..., int | None]:
    """What stands on the stream of the call may still read what is reduced in place."""

    def found(unit: Any, shard: torch.Tensor) -> int | None:
        note("earlier read", read=(shard,))
        return original(unit, shard)

    return found


WAYS = ["plain", "float16", "accumulated", "hooked", "own reduce-scatter"]


def trace_steps(rank: int, world_size: int) -> dict[str, str]:
    automatic.stream_of_shard = read_before(automatic.stream_of_shard)
    return {way: trace_a_step(way) for way in WAYS}


def trace_a_step(way: str) -> str:
    ranks.init(pg_options=isthmus.Options(**OPTIONS))
    reduce_dtype = torch.float16 if way == "float16" else torch.float32
    model = cuda_worlds.sharded((2, 2), units=UNITS, features=FEATURES, reduce_dtype=reduce_dtype)
    # Without gathers ahead: torch 2.15 looks whether such a one is done, which it is here, and no stream waits then.
    isthmus.prepare(model, prefetch=False)
    step = whole = cuda_worlds.training_step(model, FEATURES)
    if way == "accumulated":

        def step() -> None:
            model.set_requires_all_reduce(False)
            model(torch.ones(2, FEATURES, device="cuda")).sum().backward()
            model.set_requires_all_reduce(True)
            whole()

    for _ in range(2):
        step()
    for layer in model:
        if way == "own reduce-scatter":
            layer.set_custom_reduce_scatter(OwnReduceScatter())  # nobody knows which stream makes its output
        elif way == "hooked":
            layer.set_all_reduce_hook(lambda shard: shard.mul_(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        traced(path, step)
        text = path.read_text()
    finish()
    return text


@dataclass(frozen=True)
class AllReduce:
    """The works of one, in the order of the calls."""

    encode: Work
    exchange: Work
    decode: Work
    encode_result: Work
    gather: Work
    decode_result: Work


def all_reduces(trace: Trace) -> list[AllReduce]:
    names = ["encode", "Send/Recv", "decode", "encode", "AllGather", "decode"]
    first_result = trace.named("encode")[1]
    works = [w for w in trace.works if w.name in names and (w.name != "AllGather" or w.comes_after(first_result))]
    assert [work.name for work in works] == names * UNITS
    return [AllReduce(*works[first : first + len(names)]) for first in range(0, len(works), len(names))]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return fake_gpu.run(trace_steps, WORLD_SIZE)[0]


@pytest.fixture(params=WAYS)
def case(request: pytest.FixtureRequest, texts: dict[str, str]) -> tuple[str, Trace]:
    return request.param, Trace(texts[request.param])


def test_all_uses_of_memory_are_ordered(case: tuple[str, Trace]) -> None:
    _, trace = case
    reads = trace.named("earlier read")
    assert len(reads) == UNITS
    for unit, read in zip(all_reduces(trace), reads, strict=True):
        of_lane = [work for work in trace.works if work.stream == unit.decode_result.stream]
        assert any(work.writes(read.uses[0].begin) for work in of_lane), "the trace shows who writes the result"
    assert trace.conflicts() == []


def test_a_unit_waits_for_the_one_before_the_last_alone(case: tuple[str, Trace]) -> None:
    way, trace = case
    units = all_reduces(trace)
    waits = [after.encode.comes_after(before.decode_result) for before, after in pairwise(units)]
    assert waits == [way == "own reduce-scatter"] * (UNITS - 1)
    for before, after in zip(units, units[2:], strict=False):
        assert after.encode.comes_after(before.decode_result), "two are under way"


def test_what_one_unit_has_gathered_does_not_hold_up_the_next(case: tuple[str, Trace]) -> None:
    way, trace = case
    for before, after in pairwise(all_reduces(trace)):
        assert after.exchange.comes_after(before.exchange) and after.gather.comes_after(before.gather)
        assert after.encode_result.comes_after(before.gather) == (way == "own reduce-scatter")


#: Of a unit, in ms: its sum in the node, and then what its all-reduce takes.
SUM, ENCODE, EXCHANGE, DECODE, ENCODE_RESULT, GATHER, DECODE_RESULT = 0.5, 0.2, 2.0, 0.3, 0.2, 1.5, 0.4


def ms_over_one_link(trace: Trace) -> float:
    """How long all takes, where exchanges and gathers have one link, which serves one at a time, as they come."""
    takes = {
        id(work): ms
        for unit in all_reduces(trace)
        for work, ms in (
            (unit.encode, ENCODE),
            (unit.exchange, EXCHANGE),
            (unit.decode, DECODE),
            (unit.encode_result, ENCODE_RESULT),
            (unit.gather, GATHER),
            (unit.decode_result, DECODE_RESULT),
        )
    } | {id(work): SUM for work in trace.named("ReduceScatter")}
    crossing = {id(work) for unit in all_reduces(trace) for work in (unit.exchange, unit.gather)}
    return served_ms(trace, lambda work: takes.get(id(work), 0.0), lambda work: id(work) in crossing)


def served_ms(trace: Trace, ms: Callable[[Work], float], crosses: Callable[[Work], bool]) -> float:
    ends: dict[tuple[int, int], float] = {}
    left = {id(work): work for work in trace.works}
    before = {
        id(work): {(s, n - (s == work.stream)) for s, n in work.before.items() if n > (s == work.stream)}
        for work in trace.works
    }
    link_free = 0.0
    while left:
        ready = {
            key: max((ends[each] for each in before[key]), default=0.0) for key in left if before[key] <= ends.keys()
        }
        key = min(ready, key=ready.__getitem__)
        work = left.pop(key)
        begin = max(ready[key], link_free) if crosses(work) else ready[key]
        ends[work.stream, work.number] = begin + ms(work)
        if crosses(work):
            link_free = begin + ms(work)
    return max(ends.values())


def planned_ms() -> float:
    def stage(resource: Resource, ms: float) -> Stage:
        return Stage((resource,), ms)

    all_reduce = (
        stage(Resource.ENCODER, ENCODE),
        stage(Resource.BETWEEN, EXCHANGE),
        stage(Resource.DECODER, DECODE),
        stage(Resource.ENCODER, ENCODE_RESULT),
        stage(Resource.BETWEEN, GATHER),
        stage(Resource.DECODER, DECODE_RESULT),
    )
    unit = UnitWork(1 / UNITS, reduce_scatter=(stage(Resource.WITHIN, SUM),), all_reduce=all_reduce)
    return passes_s([unit] * UNITS, input_buffers=2, compute_s=0)


def test_the_link_is_never_idle_and_the_plan_says_so(case: tuple[str, Trace]) -> None:
    way, trace = case
    summed = SUM * (len(trace.named("ReduceScatter")) - UNITS + 1)  # until the first all-reduce
    one_by_one = summed + UNITS * (ENCODE + EXCHANGE + DECODE + ENCODE_RESULT + GATHER + DECODE_RESULT)
    always_crossing = summed + ENCODE + UNITS * (EXCHANGE + GATHER) + DECODE_RESULT
    measured = ms_over_one_link(trace)
    if way == "own reduce-scatter":
        assert measured == pytest.approx(one_by_one)
    else:
        assert measured == pytest.approx(always_crossing)
        assert planned_ms() == pytest.approx(measured - summed + SUM, rel=0.05)
