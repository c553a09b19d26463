"""What a step of FSDP2 and an update of weights enqueue, on the fake GPU: what is ordered, and what overlaps."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus
from isthmus.model.collectives import UnitReduceScatter
from isthmus.plan.pipeline import Resource, Stage, UnitWork, passes_s
from isthmus.weights import apply, encode
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checks import finish
from support.gpu_trace import Trace, Work, note, traced

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
UNITS = 4
FEATURES = 64
OPTIONS: dict[str, Any] = {"nodes": "2x2", "min_elements": 0, "segments": 1}
BACKENDS = {"name": "isthmus", "attach": "cpu:gloo,cuda:nccl"}
CASES = [*((way, torch.float32) for way in BACKENDS), ("name", torch.float16)]
#: What a unit takes: each of its two sums in the node (one is beside the exchange), its exchange, its decoding.
DURATIONS = {"ReduceScatter": 1.0, "Send/Recv": 2.0, "decode": 0.2}


def output_was_in_use(call: Any, self: Any, output_tensor: torch.Tensor, **arguments: Any) -> Any:
    """Whoever had the output's memory before may use it until now, on the stream on which it was freed."""
    note("earlier use", output_tensor)
    return call(self, output_tensor=output_tensor, **arguments)


def trace_steps(rank: int, world_size: int) -> list[str]:
    original: Any = UnitReduceScatter.__call__
    UnitReduceScatter.__call__ = lambda *args, **named: output_was_in_use(original, *args, **named)  # type: ignore[method-assign]
    return [trace_a_step(*case) for case in CASES]


def trace_a_step(way: str, dtype: torch.dtype) -> str:
    ranks.init(BACKENDS[way], **({"pg_options": isthmus.Options(**OPTIONS)} if way == "name" else {}))
    model = cuda_worlds.sharded((WORLD_SIZE,), units=UNITS, features=FEATURES, param_dtype=dtype, reduce_dtype=dtype)
    if way == "attach":
        isthmus.attach(model, **OPTIONS)
    step = cuda_worlds.training_step(model, FEATURES)
    for _ in range(2):
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        traced(path, step)
        text = path.read_text()
    finish()
    return text


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return fake_gpu.run(trace_steps, WORLD_SIZE)[0]


@pytest.fixture(params=range(len(CASES)), ids=map(str, CASES))
def case(request: pytest.FixtureRequest, texts: list[str]) -> tuple[torch.dtype, Trace]:
    return CASES[request.param][1], Trace(texts[request.param])


def by_unit(works: list[Work]) -> list[list[Work]]:
    """The works of one kind, all of a step, by unit."""
    assert works and len(works) % UNITS == 0
    each = len(works) // UNITS
    return [works[first : first + each] for first in range(0, len(works), each)]


def test_all_uses_of_memory_are_ordered(case: tuple[torch.dtype, Trace]) -> None:
    _, trace = case
    sums = by_unit(trace.named("ReduceScatter"))
    decodings = by_unit(trace.named("decode"))
    before = by_unit(trace.named("earlier use"))
    for (own_sum, *_), (decoding,), (use,) in zip(sums, decodings, before, strict=True):
        _unit_told, gradient, *_ = (use.begin for use in own_sum.uses if not use.is_written)
        filled = [work for work in trace.works if "chunk_cat" in work.name and work.writes(gradient)]
        assert filled, "the trace shows who fills the input"
        assert any(decoding.writes(output.begin) for output in use.uses), "the trace shows who fills the output"
    assert trace.conflicts() == []


def test_a_sum_does_not_wait_for_the_unit_before(case: tuple[torch.dtype, Trace]) -> None:
    dtype, trace = case
    sums, decodings = by_unit(trace.named("ReduceScatter")), by_unit(trace.named("decode"))
    waits = [
        any(sum_.comes_after(before[-1]) for sum_ in sums) for before, sums in zip(decodings, sums[1:], strict=False)
    ]
    # FSDP2 divides in float16 on the stream on which it calls.
    assert waits == [dtype == torch.float16] * (UNITS - 1)


def planned_s() -> float:
    resources = {"ReduceScatter": Resource.WITHIN, "Send/Recv": Resource.BETWEEN, "decode": Resource.DECODER}
    path = tuple(Stage((resources[name],), seconds) for name, seconds in DURATIONS.items())
    unit = UnitWork(1 / UNITS, reduce_scatter=path)
    return passes_s([unit] * UNITS, input_buffers=2, compute_s=0)


def test_the_step_is_as_long_as_its_exchanges(case: tuple[torch.dtype, Trace]) -> None:
    dtype, trace = case
    assert planned_s() == pytest.approx(1 + UNITS * 2 + 0.2)
    assert trace.seconds(DURATIONS) == pytest.approx(UNITS * 3.2 if dtype == torch.float16 else planned_s())


def test_a_gather_does_not_wait_for_the_node_of_the_one_before(case: tuple[torch.dtype, Trace]) -> None:
    _, trace = case
    gathers = trace.named("AllGather")
    rail, node = (
        [work for work in gathers if (work.stream == gathers[0].stream) == is_rail] for is_rail in (True, False)
    )
    in_node = by_unit(node[: len(node) // len(rail) * UNITS])  # those of the forward pass
    for (before, after), parts in zip(pairwise(rail[:UNITS]), in_node, strict=False):
        assert after.comes_after(before)
        assert not after.comes_after(parts[-1])


def trace_of_an_update(rank: int, world_size: int) -> tuple[str, int]:
    old = torch.linspace(-1, 1, 20_001, device="cuda").bfloat16()
    new = old * 1.01
    results = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        traced(path, lambda: results.append(apply(old, encode(old, new))))
        assert torch.equal(results[0], new)
        return path.read_text(), stream.cuda_stream


def test_an_update_is_on_the_current_stream_alone() -> None:
    text, stream = fake_gpu.run(trace_of_an_update, 1)[0]
    trace = Trace(text)
    assert len(trace.named("encode weights")) == 2  # the second for the old bits' checksum
    assert len(trace.named("decode weights")) == 1
    assert {work.stream for work in trace.works} == {stream}
    assert not trace.conflicts()
