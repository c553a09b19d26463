"""Reductions that are recognised as gradients: which, of which unit, what they sum to, and what they send."""

import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

import isthmus
from gpu.worlds.reductions import all_reduce, heavy_tail, own_chunk, reduce_scatter
from isthmus.base import backends as _backends
from isthmus.plan.packets import WireOptions
from python.plan.packet_sizes import piece_bytes
from support.checks import Table
from support.families import gathered
from support.logs import logged
from support.tested_codecs import CODECS, LOSSY, carried

WORLD_SIZE = 4
table = Table()


def group_of(**options: Any) -> dist.ProcessGroup:
    settings = {"nodes": "2x2", "min_elements": 0, **options}
    return dist.new_group(backend="isthmus", pg_options=isthmus.Options(**settings))


def carried_by_all_ranks(numel: int, step: int = 0) -> list[torch.Tensor]:
    return [carried(numel, rank, WORLD_SIZE, step) for rank in range(WORLD_SIZE)]


@table
def what_every_codec_can_carry_arrives_to_the_bit() -> None:
    """The whole way, without rounding that could hide anything: nodes, segments, types, operators, steps.

    Of several segments tagc holds some values back, which do not peel in so small sketches.
    """
    ops = [(dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.25)]
    numel = WORLD_SIZE * (3 * 4096 + 700)
    for codec, nodes in [*((codec, "2x2") for codec in LOSSY), ("default", "0,2|1,3"), ("default", "4x1")]:
        for segments in (1,) if codec == "tagc" else (1, 4):
            group = group_of(nodes=nodes, segments=segments, **CODECS[codec])
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for step, (op, scale) in enumerate(2 * ops):
                    sources = [source.to(dtype) for source in carried_by_all_ranks(numel, step)]
                    expected = (scale * sum(source.double() for source in sources)).to(dtype)
                    shard = reduce_scatter(sources[dist.get_rank()], group, f"scatter {scale}", op)
                    whole = all_reduce(sources[dist.get_rank()], group, f"all {scale}", op)
                    right = torch.equal(shard, own_chunk(expected)), torch.equal(whole, expected)
                    assert all(gathered(all(right))), (codec, nodes, segments, dtype, op, right)
            assert isthmus.stats(group)["compressed_calls"] == 2 * 3 * 2 * len(ops)


@table
def packets_are_as_long_as_planned() -> None:
    """What each codec hands to the rail for a reduce-scatter and an all-reduce, by the sizes of the documents."""
    piece = (1 << 16) + 100
    source = heavy_tail(WORLD_SIZE * piece, dist.get_rank())
    for codec in LOSSY:
        group = group_of(**CODECS[codec])
        options = _backends.backend_of(group).options
        known = [field.name for field in fields(WireOptions) if hasattr(options, field.name)]
        wire = WireOptions.of({name: getattr(options, name) for name in known})
        packets = piece_bytes(piece, 4, options.codec, wire)
        reduce_scatter(source, group)
        all_reduce(source, group)
        stats = isthmus.stats(group)
        assert stats["compressed_calls"] == 2
        assert stats["collectives"]["reduce_scatter"]["inter"]["sent_bytes"] == packets, codec
        assert stats["collectives"]["all_reduce"]["inter"]["sent_bytes"] == 2 * packets, codec


class _ReduceScatterInBackward(torch.autograd.Function):
    """What sequence parallelism does: a reduce-scatter of activations' gradients inside a backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.call = call
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.call(gradient.contiguous()), None


@table
def an_unlabelled_reduction_inside_a_backward_pass_is_exact() -> None:
    group = group_of()
    weight = heavy_tail(WORLD_SIZE * 65536, dist.get_rank())
    results = []
    for used in (group, dist.new_group(backend="gloo")):

        def call(gradient: torch.Tensor, used: dist.ProcessGroup = used) -> torch.Tensor:
            shard = torch.empty(gradient.numel() // WORLD_SIZE)
            dist.reduce_scatter_tensor(shard, gradient, group=used)
            return shard.repeat(WORLD_SIZE)

        leaf = torch.zeros(weight.numel(), requires_grad=True)
        (_ReduceScatterInBackward.apply(leaf, call) * weight).sum().backward()
        results.append(leaf.grad)
    assert torch.equal(*results)
    stats = isthmus.stats(group)
    assert stats["exact_calls"] == {"not labelled, in a backward pass": 1}
    assert "isthmus.prepare(model)" in stats["notes"][0]


@table
def labels_of_fsdp_are_recognised_and_prove_nothing() -> None:
    group = group_of()
    in_label, elsewhere = "inside of FSDP's reduction, but not its own", "not recognised as a gradient"
    source = torch.ones(WORLD_SIZE * 256)
    shard = torch.empty(256)
    for label, recognised in [
        ("FSDP::post_backward_reduce (blocks.1)", True),
        ("FSDP::post_backward_reduce", True),
        ("FSDP::post_backward_reduce (blocks.1) [pg=4]", True),
        ("FullyShardedDataParallel._post_backward_hook", True),
        ("FSDP::post_backward_reduced", False),
        ("FSDP::post_backward_accumulate (blocks.1)", False),
        ("my label", False),
    ]:
        isthmus.reset_stats(group)
        with record_function(label):
            dist.reduce_scatter_tensor(shard, source, group=group)
        assert isthmus.stats(group)["exact_calls"] == {in_label if recognised else elsewhere: 1}, label
    isthmus.reset_stats(group)
    with isthmus.unit("x"), record_function("inner"):
        dist.reduce_scatter_tensor(shard, source, group=group)
    dist.reduce_scatter_tensor(shard, source, group=group)
    assert isthmus.stats(group)["compressed_calls"] == 1  # the tag counts within it, and no longer


@table
def coalesced_gradients() -> None:
    """Each tensor is a unit of its own; what is no gradient goes to Gloo; results come in the order of the inputs."""
    for scatters in (False, True):
        group = group_of()
        sources = [carried_by_all_ranks(4000 * (i + 1), step=i) for i in range(2)]
        first, last = (source[dist.get_rank()].clone() for source in sources)
        inputs = [first, torch.ones(8, dtype=torch.int64), last]
        results, expected = inputs, [sum(sources[0]), torch.full((8,), 4), sum(sources[1])]
        with isthmus.unit("x"):
            if scatters:
                results, expected = ([own_chunk(tensor).clone() for tensor in found] for found in (inputs, expected))
                work = group.reduce_scatter_tensor_coalesced(results, inputs, dist.ReduceScatterOptions())
            else:
                work = group.allreduce_coalesced(inputs, dist.AllreduceCoalescedOptions())
        if scatters:
            assert work.wait() and work.is_completed()
        else:
            values = work.get_future().wait()
            assert [value.data_ptr() for value in values] == [result.data_ptr() for result in results]
        assert all(map(torch.equal, results, expected))
        stats = isthmus.stats(group)
        assert stats["collectives"]["reduce_scatter" if scatters else "all_reduce"]["calls"] == 2
        assert stats["exact_calls"]["not a sum of floating-point numbers"] == 1


@table
def asynchronous_gradients_keep_their_order() -> None:
    group = group_of()
    works = []
    for salt in range(10):
        sources = [source.bfloat16() for source in carried_by_all_ranks(40_000, step=salt)]
        shard = torch.empty(10_000, dtype=torch.bfloat16)
        with isthmus.unit(f"unit{salt % 3}"):
            works.append(
                (
                    dist.reduce_scatter_tensor(shard, sources[dist.get_rank()], group=group, async_op=True),
                    shard,
                    sources,
                )
            )
    for work, shard, sources in reversed(works):
        work.wait()
        assert torch.equal(shard, own_chunk(sum(sources)))


@table
def a_unit_may_reduce_several_times() -> None:
    """A layer that is called twice: its residual is added to whatever of its gradient comes next."""
    group = group_of(**CODECS["tagc"])
    for _ in range(3):
        for name in ("once", "twice", "twice"):
            with isthmus.unit(name):
                dist.reduce_scatter_tensor(torch.empty(256), torch.ones(WORLD_SIZE * 256), group=group)
    steps = {unit["name"]: unit["step"] for unit in _backends.isthmus_backend(group).unit_states()}
    assert steps == {"once": 3, "twice": 6}
    with pytest.raises(ValueError, match="a unit needs a name"), isthmus.unit(""):
        pass
    with pytest.raises(KeyError), isthmus.unit("raising"):
        raise KeyError
    isthmus.reset_stats(group)
    dist.reduce_scatter_tensor(torch.empty(256), torch.ones(WORLD_SIZE * 256), group=group)
    assert isthmus.stats(group)["exact_calls"] == {"not recognised as a gradient": 1}


@table
def a_unit_inside_of_a_coalescing_manager_says_that_it_names_nothing() -> None:
    group = group_of()

    def reduce() -> None:
        dist.reduce_scatter_tensor(torch.empty(256), torch.ones(WORLD_SIZE * 256), group=group)

    with logged() as messages, isthmus.unit("around"), dist._coalescing_manager(group):
        reduce()
        reduce()
    assert isthmus.stats(group)["compressed_calls"] == 2 and not messages
    with logged() as messages:
        for _ in range(2):  # told once
            with dist._coalescing_manager(group):
                reduce()
                with isthmus.unit("inside"):
                    reduce()
    assert isthmus.stats(group)["exact_calls"] == {"not recognised as a gradient": 4}
    told = "isthmus.unit('inside') is inside of a coalescing manager, where it names nothing: torch makes its 1 calls"
    assert [message.startswith(told) for message in messages] == [True] * (dist.get_rank() == 0)


@table
def only_seconds_of_calls_are_waited_for() -> None:
    """Whoever waits for a Work also waits for callbacks of its Future, while nothing is communicated."""
    group = group_of()
    outputs = []
    with isthmus.unit("x"):
        for _ in range(3):
            outputs.append(torch.empty(1 << 14))
            work = dist.reduce_scatter_tensor(outputs[-1], torch.ones(WORLD_SIZE << 14), group=group, async_op=True)
    work.get_future().then(lambda _: time.sleep(0.3))
    work.wait()
    stats = isthmus.stats(group)
    assert stats["compressed_calls"] == 3
    assert 0 < stats["waited_s"] <= stats["ran_s"]
    isthmus.reset_stats(group)
    stats = isthmus.stats(group)
    assert stats["waited_s"] == stats["ran_s"] == 0


test_gradient = table.in_world(env={"ISTHMUS_LOG": "error"})
