"""Codec auto over real process groups: all ranks choose alike, results hold, and explain() says what was chosen."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

import isthmus
from support import ranks

pytestmark = pytest.mark.processes

WORLD_SIZE = 4
NUMEL = WORLD_SIZE * 20_000
TOLERANCE = 1e-5


@contextmanager
def gradient(unit):
    with isthmus.unit(unit):
        yield


def group_of(**options):
    options = {"nodes": "2x2", "codec": "auto", "min_elements": 1000, **options}
    return dist.new_group(backend="isthmus", pg_options=isthmus.Options(**options))


def inputs(numel=NUMEL):
    return [torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for rank in range(WORLD_SIZE)]


def relative_squared_error(group, unit, numel=NUMEL):
    """Of one reduce-scatter of that unit, on this rank."""
    sources = inputs(numel)
    shard = torch.empty(numel // WORLD_SIZE)
    with gradient(unit):
        dist.reduce_scatter_tensor(shard, sources[dist.get_rank()].clone(), group=group)
    exact = sum(sources).chunk(WORLD_SIZE)[dist.get_rank()]
    return float((shard - exact).square().sum() / exact.square().sum())


def equal_on_all_ranks(value):
    values = [None] * WORLD_SIZE
    dist.all_gather_object(values, value)
    assert values == [values[0]] * WORLD_SIZE, values
    return values[0]


def compresses_over_a_slow_link():
    group = group_of(inter_gbit=0.001, intra_gbit=100)
    error = relative_squared_error(group, "blocks.0")
    line = equal_on_all_ranks(isthmus.explain(group).partition("; 4.")[0])
    assert line.startswith("blocks.0 (reduce_scatter, 80,000 elements): quant 4 bit: "), line
    assert "plain over 0.001 Gbit/s; expected error 0.0117 of budget 0.02" in line
    assert error == pytest.approx(0.0115 / 2, rel=0.1)  # of two nodes' sums, which are alike in size, one crosses
    (unit,) = isthmus.stats(group)["units"]
    assert 4 < unit["bits_per_element"] < 4.5
    assert unit["relative_squared_error"] == pytest.approx(0.0115, rel=0.2)


def does_what_it_explains_over_a_fast_link():
    """Whether codes pay is a matter of microseconds here, and of how busy the machine is; that all act alike is not."""
    group = group_of(inter_gbit=100_000, intra_gbit=100_000, error_budget=1)
    error = relative_squared_error(group, "blocks.0")
    is_exact = ": none: " in equal_on_all_ranks(isthmus.explain(group).partition("; ")[0])
    assert (error < TOLERANCE) == is_exact
    assert isthmus.stats(group)["compressed_calls"] == (0 if is_exact else 1)


def a_budget_that_nothing_meets_is_exact_and_says_so():
    group = group_of(inter_gbit=0.001, intra_gbit=100, error_budget=1e-9)
    assert relative_squared_error(group, "blocks.0") < TOLERANCE
    assert "no codec keeps to the error budget 1e-09" in equal_on_all_ranks(isthmus.explain(group))


def measures_links_and_the_world_and_chooses_alike():
    """Which way is faster here nobody knows before; that it is the same on all ranks, and right, is what counts."""
    group = group_of(error_budget=1e-9)
    for numel in (4000, NUMEL, 8 * NUMEL):
        for _ in range(2):
            assert relative_squared_error(group, f"unit of {numel}", numel) < TOLERANCE
        whole = torch.empty(numel)
        own = inputs(numel)[0].chunk(WORLD_SIZE)[dist.get_rank()].contiguous()
        dist.all_gather_into_tensor(whole, own, group=group)
        assert torch.equal(whole, inputs(numel)[0])
    stats = isthmus.stats(group)
    equal_on_all_ranks([(unit["name"], unit["codec"], unit["calls"], unit["reason"]) for unit in stats["units"]])
    equal_on_all_ranks(stats["exact_calls"])
    assert sum(unit["calls"] for unit in stats["units"]) == 6
    assert len(isthmus.explain(group).splitlines()) == 3


def a_first_all_gather_measures_too():
    group = group_of()
    shard = torch.full((NUMEL // WORLD_SIZE,), float(dist.get_rank()), dtype=torch.bfloat16)
    whole = torch.empty(NUMEL, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(whole, shard, group=group)
    assert whole.chunk(WORLD_SIZE)[3].eq(3).all()
    equal_on_all_ranks(isthmus.stats(group)["exact_calls"])


def gradients_of_any_type_and_layout_are_summed_either_way():
    """Small ones are often left to the world backend, which on the CPU sums the gaps of tensors that have them."""
    group = group_of(error_budget=1e-9)
    total = sum(range(1, WORLD_SIZE + 1))
    for dtype in (torch.float64, torch.float32):
        own = torch.full((WORLD_SIZE, 5), dist.get_rank() + 1, dtype=dtype)
        shard, number, gaps = own.new_empty(5), own.new_empty(()), own.new_zeros(5, 2)
        gaps[:, 0] = dist.get_rank() + 1
        with gradient(f"of {dtype}"):
            dist.reduce_scatter_tensor(shard, own, group=group)
            dist.reduce_scatter_tensor(number, own[:, 0].contiguous(), group=group)
            dist.all_reduce(gaps[:, 0], group=group)
        assert shard.eq(total).all()
        assert number == total
        assert gaps[:, 0].eq(total).all()
        assert gaps[:, 1].eq(0).all()
        whole = own.new_empty(NUMEL)
        dist.all_gather_into_tensor(whole, own.new_full((NUMEL // WORLD_SIZE,), dist.get_rank()), group=group)
        assert whole.chunk(WORLD_SIZE)[3].eq(3).all()
    with_default_budget = group_of()
    with gradient("of float64"):
        dist.all_reduce(tensor := torch.ones(NUMEL, dtype=torch.float64), group=with_default_budget)
    assert tensor.eq(WORLD_SIZE).all()


def explain_tells_of_fixed_codecs():
    group = group_of(codec="quant", bits=2)
    relative_squared_error(group, "blocks.0")
    line = isthmus.explain(group)
    assert "quant bits=2" in line
    assert "as the options say" in line


def quant_without_bits_keeps_to_the_budget():
    group = group_of(codec="quant", bits=0, error_budget=0.14)
    assert relative_squared_error(group, "blocks.0") == pytest.approx(0.135 / 2, rel=0.1)
    assert "quant 2 bit: the fewest bits" in equal_on_all_ranks(isthmus.explain(group).partition("; 2.")[0])


CHECKS = (
    compresses_over_a_slow_link,
    does_what_it_explains_over_a_fast_link,
    a_budget_that_nothing_meets_is_exact_and_says_so,
    measures_links_and_the_world_and_chooses_alike,
    a_first_all_gather_measures_too,
    gradients_of_any_type_and_layout_are_summed_either_way,
    explain_tells_of_fixed_codecs,
    quant_without_bits_keeps_to_the_budget,
)


def run_checks(rank, world_size):
    ranks.init("gloo")
    for check in CHECKS:
        check()
        dist.barrier()
    dist.destroy_process_group()


def test_auto_over_process_groups():
    ranks.run(run_checks, WORLD_SIZE)
