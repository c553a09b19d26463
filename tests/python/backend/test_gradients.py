"""Reductions that are recognised as gradients: what they sum to, what they send, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

import isthmus
from isthmus import _backends, _native
from isthmus.plan.packets import WireOptions, piece_bytes
from support import ranks
from support.checks import Table, World, finish
from support.tested_codecs import CODECS, KEEP_RESIDUALS, LOSSY, carried

pytestmark = pytest.mark.processes

WORLD_SIZE = 4
HEADER_BYTES = 48
NODE_MAPS = {"2x2": (2, 2), "0,2|1,3": (2, 2), "4x1": (4, 1)}  # nodes, ranks a node
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Codecs that keep residuals, on each kind of node map.
RESIDUAL_CASES = [("tagc", "2x2"), ("sparse", "0,2|1,3"), ("tagc", "4x1"), ("sparse", "4x1")]
table = Table()


class Groups:
    """One group for each set of options, made when it is first asked for."""

    def __init__(self) -> None:
        self.gloo = dist.new_group(backend="gloo")
        self._made: dict[str, dist.ProcessGroup] = {}

    def __call__(self, **options: Any) -> dist.ProcessGroup:
        options = {"nodes": "2x2", "min_elements": 0, **options}
        key = repr(sorted(options.items()))
        if key not in self._made:
            self._made[key] = dist.new_group(backend="isthmus", pg_options=isthmus.Options(**options))
        isthmus.reset_stats(self._made[key])
        return self._made[key]


@contextmanager
def gradient(unit: str = "x") -> Iterator[None]:
    with isthmus.unit(unit):
        yield


def inputs_of_all_ranks(numel: int, dtype: torch.dtype, salt: int = 0) -> list[torch.Tensor]:
    return [
        torch.randn(numel, generator=torch.Generator().manual_seed(100 * salt + rank)).to(dtype)
        for rank in range(WORLD_SIZE)
    ]


def carried_by_all_ranks(numel: int, step: int = 0) -> list[torch.Tensor]:
    return [carried(numel, rank, WORLD_SIZE, step) for rank in range(WORLD_SIZE)]


def reduce_scatter(
    group: dist.ProcessGroup, source: torch.Tensor, op: Any = dist.ReduceOp.SUM, unit: str = "x"
) -> torch.Tensor:
    shard = torch.full((source.numel() // WORLD_SIZE,), torch.nan).to(source.dtype)
    with gradient(unit):
        dist.reduce_scatter_tensor(shard, source, op, group=group)
    return shard


def all_reduce(
    group: dist.ProcessGroup, source: torch.Tensor, op: Any = dist.ReduceOp.SUM, unit: str = "x"
) -> torch.Tensor:
    result = source.clone()
    with gradient(unit):
        dist.all_reduce(result, op, group=group)
    return result


def native(group: dist.ProcessGroup) -> Any:
    return group._get_backend(torch.device("cpu"))


def own_chunk(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(WORLD_SIZE)[dist.get_rank()]


def equal_on_all_ranks(groups: Groups, result: torch.Tensor) -> bool:
    of_rank_0 = result.clone()
    dist.broadcast(of_rank_0, 0, group=groups.gloo)
    return torch.equal(of_rank_0, result)


def on_all_ranks(groups: Groups, holds: bool) -> bool:
    """Whether it holds everywhere: a rank that fails alone would leave the others waiting for its next collective."""
    number = torch.tensor(int(holds))
    dist.all_reduce(number, dist.ReduceOp.MIN, group=groups.gloo)
    return bool(number)


def assert_within_bound(result: torch.Tensor, sources: list[torch.Tensor], scale: float) -> None:
    """Against a sum in float64: one rounding of each node's partial sum, one of the result, and those of the sums."""
    exact = torch.stack([source.double() for source in sources]).sum(0) * scale
    magnitude = torch.stack([source.double().abs() for source in sources]).sum(0) * scale
    if result.shape != exact.shape:
        exact, magnitude = own_chunk(exact), own_chunk(magnitude)
    sum_dtype = torch.float64 if result.dtype == torch.float64 else torch.float32
    epsilon = torch.finfo(result.dtype).eps + WORLD_SIZE * torch.finfo(sum_dtype).eps
    error = (result.double() - exact).abs()
    assert torch.all(error <= epsilon * magnitude + torch.finfo(result.dtype).tiny), error.max()


@table
def codec_none_sums_within_its_bound(groups: Groups) -> None:
    half = dist._make_nccl_premul_sum(0.5)
    tensor_half = dist._make_nccl_premul_sum(torch.tensor([0.5]))
    ops = [(dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.25), (half, 0.5), (tensor_half, 0.5)]
    for nodes in NODE_MAPS:
        group = groups(nodes=nodes, codec="none")
        for dtype in FLOATS:
            for numel in (4, 12, 4 * 1023):
                for op, scale in ops:
                    sources = inputs_of_all_ranks(numel, dtype)
                    assert_within_bound(reduce_scatter(group, sources[dist.get_rank()], op), sources, scale)
        assert isthmus.stats(group)["collectives"]["reduce_scatter"]["calls"] == len(FLOATS) * 3 * len(ops)


@table
def codec_none_in_flat_tiers_sums_within_its_bound(groups: Groups) -> None:
    for nodes in NODE_MAPS:
        group = groups(nodes=nodes, codec="none", tiers="flat")
        for dtype in FLOATS:
            sources = inputs_of_all_ranks(4 * 1023, dtype)
            assert_within_bound(reduce_scatter(group, sources[dist.get_rank()], dist.ReduceOp.AVG), sources, 0.25)


@table
def all_reduce_with_codec_none_sums_within_its_bound(groups: Groups) -> None:
    half = dist._make_nccl_premul_sum(0.5)
    ops = [(dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.25), (half, 0.5)]
    sizes = (1, 3, 4, 5, 4 * 1023 + 1)
    for nodes in NODE_MAPS:
        group = groups(nodes=nodes, codec="none")
        for dtype in FLOATS:
            for numel in sizes:
                for op, scale in ops:
                    sources = inputs_of_all_ranks(numel, dtype)
                    result = all_reduce(group, sources[dist.get_rank()], op)
                    assert_within_bound(result, sources, scale)
                    assert equal_on_all_ranks(groups, result)
        assert isthmus.stats(group)["collectives"]["all_reduce"]["calls"] == len(FLOATS) * len(sizes) * len(ops)


@table
def what_every_codec_can_carry_arrives_to_the_bit(groups: Groups) -> None:
    """The whole way, without rounding that could hide anything: nodes, segments, types, operators, steps.

    Of several segments tagc holds some values back, which do not peel in so small sketches.
    """
    ops = [(dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.25)]
    numel = WORLD_SIZE * (3 * 4096 + 700)
    for codec, nodes in [*((codec, "2x2") for codec in LOSSY), *(("default", nodes) for nodes in NODE_MAPS)]:
        for segments in (1,) if codec == "tagc" else (1, 4):
            group = groups(nodes=nodes, segments=segments, **CODECS[codec])
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for step, (op, scale) in enumerate(2 * ops):
                    sources = [source.to(dtype) for source in carried_by_all_ranks(numel, step)]
                    expected = (scale * sum(source.double() for source in sources)).to(dtype)
                    shard = reduce_scatter(group, sources[dist.get_rank()], op, unit=f"scatter {scale}")
                    whole = all_reduce(group, sources[dist.get_rank()], op, unit=f"all {scale}")
                    right = torch.equal(shard, own_chunk(expected)), torch.equal(whole, expected)
                    assert on_all_ranks(groups, all(right)), (codec, nodes, segments, dtype, op, right)
            assert isthmus.stats(group)["compressed_calls"] == 2 * 3 * 2 * len(ops)


@table
def processes_have_the_bits_of_ranks_in_one_process(groups: Groups) -> None:
    """Any numbers, and what the codec makes of them: rounding, residuals and steps are those of the communicator."""
    for codec in LOSSY:
        options = {"min_elements": 0, "segments": 2, **CODECS[codec]}
        simulated = _native.load().SimulatedNodes(num_nodes=2, ranks_per_node=2, options=isthmus.Options(**options))
        group = groups(**options)
        for step in range(3):
            sources = inputs_of_all_ranks(WORLD_SIZE * 9001, torch.float32, salt=step)
            expected = simulated.reduce("bits", sources, 1.0)
            result = reduce_scatter(group, sources[dist.get_rank()], unit="bits")
            assert on_all_ranks(groups, torch.equal(result, own_chunk(expected))), (codec, step)
        assert not torch.equal(result, own_chunk(torch.stack(sources).sum(0)))


@table
def all_reduce_conserves_every_element(groups: Groups) -> None:
    """Both residuals, of the pieces and of the result, are empty at last: nothing is lost, and all ranks are equal."""
    for codec, nodes in RESIDUAL_CASES:
        group = groups(nodes=nodes, segments=2, **CODECS[codec])
        numel = WORLD_SIZE * 5000 + 3
        expected, received = torch.zeros(numel), torch.zeros(numel)
        unsent_seen = False
        for step in range(24):
            sources = [(16 * source).round() for source in inputs_of_all_ranks(numel, torch.float32, salt=step)]
            if step >= 4:
                sources = [torch.zeros(numel) for _ in sources]
            expected += torch.stack(sources).sum(0)
            result = all_reduce(group, sources[dist.get_rank()], unit="conserved")
            assert equal_on_all_ranks(groups, result)
            received += result
            unsent_seen = unsent_seen or not torch.equal(received, expected)
        assert isthmus.stats(group)["compressed_calls"] == 24
        assert on_all_ranks(groups, unsent_seen and torch.equal(received, expected)), (codec, nodes, unsent_seen)


@table
def all_reduce_and_reduce_scatter_of_one_label_are_two_units(groups: Groups) -> None:
    """HSDP issues both inside one label."""
    for codec in KEEP_RESIDUALS:
        group = groups(**CODECS[codec], max_units=4093)
        ones, zeros = torch.ones(WORLD_SIZE * 4096), torch.zeros(WORLD_SIZE * 4096)
        reduce_scatter(group, ones)
        assert torch.count_nonzero(all_reduce(group, zeros)) == 0
        assert isthmus.stats(group)["num_units"] == 2


@table
def float16_sums_do_not_overflow_before_they_are_scaled(groups: Groups) -> None:
    source = torch.full((400,), 40_000.0, dtype=torch.float16)
    result = reduce_scatter(groups(codec="none"), source, dist.ReduceOp.AVG)
    assert torch.equal(result, torch.full((100,), 40_000.0, dtype=torch.float16))


@table
def payload_counters_equal_the_formula(groups: Groups) -> None:
    """Bytes that this rank hands to its transports, for one reduce-scatter and one all-gather."""
    for nodes, (num_nodes, per_node) in NODE_MAPS.items():
        for dtype in (torch.float32, torch.bfloat16):
            group = groups(nodes=nodes, codec="none")
            shard_elements = 1000
            source = inputs_of_all_ranks(WORLD_SIZE * shard_elements, dtype)[dist.get_rank()]
            shard = reduce_scatter(group, source)
            dist.all_gather_into_tensor(torch.empty_like(source), shard, group=group)
            collectives = isthmus.stats(group)["collectives"]
            piece_bytes = shard_elements * source.element_size()
            packet_bytes = (HEADER_BYTES + piece_bytes + 7) // 8 * 8
            reduce, gather = collectives["reduce_scatter"], collectives["all_gather"]
            assert reduce["inter"]["sent_bytes"] == (num_nodes - 1) * packet_bytes
            assert reduce["inter"]["inter_node_sent_bytes"] == (num_nodes - 1) * packet_bytes
            assert reduce["intra"]["sent_bytes"] == num_nodes * (per_node - 1) * piece_bytes
            assert reduce["intra"]["inter_node_sent_bytes"] == 0
            assert gather["inter"]["inter_node_sent_bytes"] == (num_nodes - 1) * piece_bytes
            assert gather["intra"]["sent_bytes"] == num_nodes * (per_node - 1) * piece_bytes
            assert gather["intra"]["inter_node_sent_bytes"] == 0


@table
def packets_are_as_long_as_planned(groups: Groups) -> None:
    """What each codec hands to the rail for a reduce-scatter and an all-reduce, by the formulas of `isthmus plan`."""
    piece = (1 << 16) + 100
    source = inputs_of_all_ranks(WORLD_SIZE * piece, torch.float32)[dist.get_rank()]
    for codec in LOSSY:
        group = groups(**CODECS[codec])
        options = native(group).options
        wire = WireOptions.of({field.name: getattr(options, field.name) for field in fields(WireOptions)})
        packets = piece_bytes(piece, 4, options.codec, wire)
        reduce_scatter(group, source)
        all_reduce(group, source)
        stats = isthmus.stats(group)
        assert stats["compressed_calls"] == 2
        assert stats["collectives"]["reduce_scatter"]["inter"]["sent_bytes"] == packets, codec
        assert stats["collectives"]["all_reduce"]["inter"]["sent_bytes"] == 2 * packets, codec


@table
def tagc_keeps_what_its_sparsity_says(groups: Groups) -> None:
    group = groups(codec="tagc")
    reduce_scatter(group, inputs_of_all_ranks(1 << 18, torch.float32)[dist.get_rank()])
    stats = isthmus.stats(group)
    assert stats["codec"]["encoded_elements"] == 1 << 16
    assert 0 < stats["codec"]["kept_elements"] <= (1 << 16) * 0.0125 + 1
    assert stats["residual_bytes"] == 4 << 16


@table
def reduce_scatter_conserves_every_element(groups: Groups) -> None:
    """Small whole numbers sum exactly. After steps with gradients, steps without empty the residual."""
    for codec, nodes in RESIDUAL_CASES:
        group = groups(nodes=nodes, segments=2, **CODECS[codec])
        numel = WORLD_SIZE * 5000
        expected = torch.zeros(numel // WORLD_SIZE)
        received = torch.zeros(numel // WORLD_SIZE)
        unsent_seen = False
        for step in range(16):
            sources = [(16 * source).round() for source in inputs_of_all_ranks(numel, torch.float32, salt=step)]
            if step >= 4:
                sources = [torch.zeros(numel) for _ in sources]
            expected += own_chunk(torch.stack(sources).sum(0))
            received += reduce_scatter(group, sources[dist.get_rank()], unit="conserved")
            unsent_seen = unsent_seen or not torch.equal(received, expected)
        assert on_all_ranks(groups, unsent_seen and torch.equal(received, expected)), (codec, nodes, unsent_seen)


@table
def the_default_codec_keeps_nothing_unless_it_is_told_to(groups: Groups) -> None:
    """One gradient again and again: errors of single steps add up, and with feedback only the last one is left."""
    numel, steps = WORLD_SIZE * 4096, 12
    sources = inputs_of_all_ranks(numel, torch.float32)
    exact = own_chunk(torch.stack(sources).sum(0))
    lost = {}
    for error_feedback in ("codec", "on"):
        group = groups(error_feedback=error_feedback)
        received = [reduce_scatter(group, sources[dist.get_rank()], unit="again") for _ in range(steps)]
        assert isthmus.stats(group)["residual_bytes"] == (4 * 4096 if error_feedback == "on" else 0)
        first = torch.linalg.vector_norm(received[0] - exact)
        lost[error_feedback] = float(torch.linalg.vector_norm(sum(received) - steps * exact) / first)
        left = reduce_scatter(group, torch.zeros(numel), unit="again")
        assert on_all_ranks(groups, bool(left.any()) == (error_feedback == "on"))
    assert lost["on"] < 1.2, lost
    # By least error a step takes a little too little, always; the rest is another one at each step.
    assert 0.8 * steps**0.5 < lost["codec"] < 2 * steps**0.5, lost


@table
def units_keep_their_residuals_apart(groups: Groups) -> None:
    for codec in KEEP_RESIDUALS:
        group = groups(**CODECS[codec])
        before = isthmus.stats(group)["num_units"]
        numel = WORLD_SIZE * 4096
        ones, zeros = torch.ones(numel), torch.zeros(numel)
        reduce_scatter(group, ones, unit="first")
        assert torch.count_nonzero(reduce_scatter(group, zeros, unit="second")) == 0
        assert torch.count_nonzero(reduce_scatter(group, torch.zeros(2 * numel), unit="first")) == 0  # another layout
        assert torch.count_nonzero(reduce_scatter(group, zeros, unit="first")) > 0
        assert isthmus.stats(group)["num_units"] == before + 3


@table
def min_elements_and_units_decide(groups: Groups) -> None:
    group = groups(min_elements=4096, units="*,!*norm*")
    for numel, unit, compressed in [(4096, "mlp", 1), (4092, "mlp", 0), (8192, "norm1", 0)]:
        isthmus.reset_stats(group)
        sources = inputs_of_all_ranks(numel, torch.float32)
        result = reduce_scatter(group, sources[dist.get_rank()], unit=unit)
        stats = isthmus.stats(group)
        assert stats["compressed_calls"] == compressed, (numel, unit)
        assert sum(stats["exact_calls"].values()) == 1 - compressed
        if not compressed:
            assert_within_bound(result, sources, 1.0)


@table
def nan_and_infinity_arrive(groups: Groups) -> None:
    group = groups()
    source = torch.zeros(WORLD_SIZE * 65536)
    if dist.get_rank() == 0:
        source.view(WORLD_SIZE, -1)[:, 5] = torch.nan
        source.view(WORLD_SIZE, -1)[:, 30_000] = torch.inf
    result = reduce_scatter(group, source, unit="nan")
    assert result[5].isnan()
    assert not result[30_000].isfinite()


def assert_equals_gloo(groups: Groups, group: dist.ProcessGroup, source: torch.Tensor, op: Any) -> None:
    expected = torch.empty_like(source[: source.numel() // WORLD_SIZE])
    dist.reduce_scatter_tensor(expected, source, op, group=groups.gloo)
    result = torch.empty_like(expected)
    with gradient():
        dist.reduce_scatter_tensor(result, source, op, group=group)
    assert torch.equal(result, expected)


@table
def what_is_no_sum_of_floats_is_exact(groups: Groups) -> None:
    group = groups()
    rank = dist.get_rank()
    cases = [
        (torch.arange(4000) * (rank + 1), dist.ReduceOp.SUM),
        (torch.arange(4000, dtype=torch.uint8) // 8, dist.ReduceOp.SUM),
        (inputs_of_all_ranks(4000, torch.float32)[rank], dist.ReduceOp.MAX),
        (inputs_of_all_ranks(4000, torch.float32)[rank], dist.ReduceOp.PRODUCT),
    ]
    for source, op in cases:
        assert_equals_gloo(groups, group, source, op)
    assert isthmus.stats(group)["exact_calls"] == {"not a sum of floating-point numbers": len(cases)}
    assert isthmus.stats(group)["compressed_calls"] == 0


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
def an_unlabelled_reduction_inside_a_backward_pass_is_exact(groups: Groups) -> None:
    group = groups()
    weight = inputs_of_all_ranks(WORLD_SIZE * 65536, torch.float32)[dist.get_rank()]
    results = []
    for used in (group, groups.gloo):

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
def labels_of_fsdp_are_recognised(groups: Groups) -> None:
    group = groups(max_units=4095)
    source = torch.ones(WORLD_SIZE * 256)
    shard = torch.empty(256)
    for label, recognised in [
        ("FSDP::post_backward_reduce (blocks.1)", True),
        ("FSDP::post_backward_reduce", True),
        ("FullyShardedDataParallel._post_backward_hook", True),
        ("FSDP::post_backward_reduced", False),
        ("FSDP::post_backward_reduce ()", False),
        ("FSDP::post_backward_accumulate (blocks.1)", False),
        ("my label", False),
    ]:
        isthmus.reset_stats(group)
        with record_function(label):
            dist.reduce_scatter_tensor(shard, source, group=group)
        assert isthmus.stats(group)["collectives"]["reduce_scatter"]["calls"] == recognised, label
    isthmus.reset_stats(group)
    with gradient(), record_function("inner"):
        dist.reduce_scatter_tensor(shard, source, group=group)
    dist.reduce_scatter_tensor(shard, source, group=group)
    assert isthmus.stats(group)["compressed_calls"] == 1  # the label counts within it, and no longer


@table
def a_unit_may_reduce_several_times(groups: Groups) -> None:
    """A layer that is called twice: its residual is added to whatever of its gradient comes next."""
    group = groups(max_units=4094, **CODECS["tagc"])
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
def tensors_that_are_not_contiguous(groups: Groups) -> None:
    sources = carried_by_all_ranks(4000)
    pairs = torch.stack([sources[dist.get_rank()], torch.ones(4000)], dim=1)
    storage = torch.zeros(1000, 2)
    with gradient():
        dist.reduce_scatter_tensor(storage[:, 1], pairs[:, 0], group=groups())
    assert torch.equal(storage[:, 1], own_chunk(sum(sources)))
    assert torch.count_nonzero(storage[:, 0]) == 0


@table
def all_reduce_of_a_tensor_that_is_not_contiguous(groups: Groups) -> None:
    sources = carried_by_all_ranks(4000)
    storage = torch.stack([torch.ones(4000), sources[dist.get_rank()]], dim=1)
    with gradient():
        dist.all_reduce(storage[:, 1], group=groups())
    assert torch.equal(storage[:, 1], sum(sources))
    assert torch.equal(storage[:, 0], torch.ones(4000))


@table
def coalesced_all_reduces(groups: Groups) -> None:
    """Each tensor is a unit of its own; what is no gradient goes to Gloo; results come in the order of the inputs."""
    group = groups()
    sources = [carried_by_all_ranks(4001 * (i + 1), step=i) for i in range(2)]
    first, last = (source[dist.get_rank()].clone() for source in sources)
    integers = torch.ones(8, dtype=torch.int64)
    with gradient():
        work = group.allreduce_coalesced([first, integers, last], dist.AllreduceCoalescedOptions())
    values = work.get_future().wait()
    assert [value.data_ptr() for value in values] == [first.data_ptr(), integers.data_ptr(), last.data_ptr()]
    assert integers.tolist() == [4] * 8
    assert torch.equal(first, sum(sources[0]))
    assert torch.equal(last, sum(sources[1]))
    stats = isthmus.stats(group)
    assert stats["collectives"]["all_reduce"]["calls"] == 2
    assert stats["exact_calls"]["not a sum of floating-point numbers"] == 1


@table
def an_empty_gradient(groups: Groups) -> None:
    group = groups()
    assert reduce_scatter(group, torch.empty(0)).numel() == 0
    assert all_reduce(group, torch.empty(0)).numel() == 0
    assert isthmus.stats(group)["exact_calls"] == {"empty": 2}


@table
def coalesced_gradients(groups: Groups) -> None:
    """Functional collectives and compiled code issue vectors of tensors."""
    group = groups()
    sources = [carried_by_all_ranks(4000 * (i + 1), step=i) for i in range(3)]
    own = [source[dist.get_rank()] for source in sources]
    shards = [torch.empty(source.numel() // WORLD_SIZE) for source in own]
    integers, integer_shard = torch.ones(8, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
    options = dist.ReduceScatterOptions()
    with gradient():
        work = group.reduce_scatter_tensor_coalesced([*shards, integer_shard], [*own, integers], options)
    assert work.wait()
    assert work.is_completed()
    for shard, source in zip(shards, sources, strict=True):
        assert torch.equal(shard, own_chunk(sum(source)))
    assert integer_shard.tolist() == [4, 4]
    assert isthmus.stats(group)["collectives"]["reduce_scatter"]["calls"] == 3
    with gradient():
        work = group.reduce_scatter_tensor_coalesced(shards, own, options)
    assert work.get_future().then(lambda future: len(future.value())).wait() == 3


@table
def asynchronous_gradients_keep_their_order(groups: Groups) -> None:
    group = groups()
    works = []
    for salt in range(10):
        sources = [source.bfloat16() for source in carried_by_all_ranks(40_000, step=salt)]
        shard = torch.empty(10_000, dtype=torch.bfloat16)
        with gradient(f"unit{salt % 3}"):
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
def uneven_nodes_and_one_node_are_exact(groups: Groups) -> None:
    source = inputs_of_all_ranks(40_000, torch.float32)[dist.get_rank()]
    for nodes in ("0|1,2,3", "1x4"):
        group = groups(nodes=nodes)
        assert_equals_gloo(groups, group, source, dist.ReduceOp.SUM)
        gathered, expected = torch.empty(WORLD_SIZE * 40_000), torch.empty(WORLD_SIZE * 40_000)
        dist.all_gather_into_tensor(gathered, source, group=group)
        dist.all_gather_into_tensor(expected, source, group=groups.gloo)
        assert torch.equal(gathered, expected)
        stats = isthmus.stats(group)
        assert stats["exact_calls"] == {"the group is not on several nodes of one size": 1}
        assert len(stats["notes"]) == 1


@table
def two_tier_all_gather_is_exact_and_can_be_turned_off(groups: Groups) -> None:
    for nodes in NODE_MAPS:
        for dtype in (torch.float32, torch.bfloat16, torch.uint8):
            for two_tier in (True, False):
                group = groups(nodes=nodes, two_tier_all_gather=two_tier, min_elements=64)
                for numel in (1, 15, 16, 1001):
                    isthmus.reset_stats(group)
                    own = (torch.randn(numel) * 50).to(dtype)
                    gathered, expected = (torch.empty(WORLD_SIZE * numel, dtype=dtype) for _ in range(2))
                    dist.all_gather_into_tensor(gathered, own, group=group)
                    dist.all_gather_into_tensor(expected, own, group=groups.gloo)
                    assert torch.equal(gathered, expected)
                    calls = isthmus.stats(group)["collectives"]["all_gather"]["calls"]
                    assert calls == (two_tier and numel >= 16)


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init()
    failures = table.run_on_this_rank(Groups())
    finish()
    return failures


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, env={"ISTHMUS_LOG": "error"})


@pytest.mark.parametrize("name", table.names)
def test_gradient(world: World, name: str) -> None:
    world.check(name)
