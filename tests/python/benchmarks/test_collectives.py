"""`isthmus bench collectives`: the checks that it makes can fail, and a tiny run from end to end."""

import json

import pytest
import torch

from isthmus.benchmarks.collectives.config import CollectivesConfig
from isthmus.benchmarks.collectives.verify import (
    num_different,
    num_outside_kept_subsets,
    num_outside_subsets,
    relative_error,
)
from python.benchmarks.bench_cli import refused, run

TOLERANCE = 1e-6


@pytest.fixture
def pieces():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1000, generator=generator) for _ in range(4)]


def test_num_different_counts_values_and_nan():
    expected = torch.arange(10.0)
    assert num_different(expected, expected) == 0
    result = expected.clone()
    result[3] += 1e-6
    result[7] = float("nan")
    assert num_different(result, expected) == 2


def test_whole_parts_or_none_are_within_the_contract(pieces):
    own, first, second, third = pieces
    taken = [torch.arange(1000) % divisor == 0 for divisor in (2, 3, 5)]
    result = own + sum(part * mask for part, mask in zip((first, second, third), taken, strict=True))
    assert num_outside_subsets(result, own, [first, second, third], TOLERANCE) == 0
    assert num_outside_subsets(own, own, [], TOLERANCE) == 0


def test_anything_else_is_not(pieces):
    own, first, second, _ = pieces
    result = own + first
    result[0] = own[0] + 0.5 * first[0]
    result[1] = own[1] + first[1] + first[1]
    result[2] = first[2]
    result[3] = float("nan")
    result[4] = float("inf")
    assert num_outside_subsets(result, own, [first, second], TOLERANCE) == 5


def test_what_an_owner_keeps_back_is_zero_in_an_all_reduce(pieces):
    own, first, second, _ = pieces
    result = (own + first) * (torch.arange(1000) % 3 == 0)
    assert num_outside_kept_subsets(result, own, [first, second], TOLERANCE) == 0
    assert num_outside_kept_subsets(torch.zeros(1000), own, [first, second], TOLERANCE) == 0
    result[0] = first[0]
    result[1] = 0.5 * own[1]
    result[2] = float("nan")
    assert num_outside_kept_subsets(result, own, [first, second], TOLERANCE) == 3


def test_too_many_parts_are_refused(pieces):
    with pytest.raises(ValueError, match="9 parts: expected at most 8"):
        num_outside_subsets(pieces[0], pieces[0], [pieces[1]] * 9, TOLERANCE)


def test_relative_error():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert relative_error(torch.zeros(2), exact) == 1
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0


def test_sizes_are_rounded_up_to_equal_parts():
    config = CollectivesConfig(nodes=3, ranks_per_node=1, min_bytes=100, max_bytes=1600, factor=4)
    assert config.element_counts() == [27, 102, 402]
    assert CollectivesConfig(min_bytes=1, max_bytes=1).element_counts() == [4]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("nodes", 1, "nodes 1: expected 2 to 8"),
        ("factor", 1, "factor 1: expected 2"),
        ("min_bytes", 1 << 25, "min_bytes 33554432: expected 1 to 16777216"),
        ("operations", ("broadcast",), "operations 'broadcast'"),
        ("backends", ("nccl",), "backends 'nccl': expected some of gloo, none, flat-tagc, tagc"),
        ("dtype", "int8", "dtype 'int8'"),
    ],
)
def test_a_bad_argument_names_field_value_and_range(field, value, message):
    with pytest.raises(ValueError, match=message):
        CollectivesConfig(**{field: value})


@pytest.mark.processes
def test_tiny_sweep_is_verified(tmp_path):
    path = tmp_path / "collectives.json"
    sizes = ["--min-bytes", "1", "--max-bytes", "64K", "--factor", 65536, "--iterations", 2]
    code, out, err = run("collectives", "--ranks-per-node", 1, *sizes, "--json", path, "--logs", tmp_path)
    assert code == 0, err + out
    report = json.loads(path.read_text())
    rows = report["rows"]
    assert len(rows) == 3 * 2 * 5  # operations, sizes, backends
    assert {row["num_wrong"] for row in rows} == {0}
    assert all(row["time_us"] > 0 and row["busbw_gb_s"] > 0 for row in rows)
    large = {(row["operation"], row["backend"]): row for row in rows if row["size_bytes"] == 65536}
    assert large["reduce_scatter", "none"]["error"] == 0
    assert large["reduce_scatter", "tagc"]["error"] > 0.1  # compressed, not merely forwarded
    assert all(rank["calls"]["compressed"] == 1 for rank in large["reduce_scatter", "tagc"]["isthmus"])
    assert large["all_gather", "tagc"]["error"] == 0
    assert large["all_reduce", "tagc"]["error"] > 0.1
    assert all(rank["calls"]["compressed"] == 1 for rank in large["all_reduce", "tagc"]["isthmus"])
    assert large["all_reduce", "flat-tagc"]["error"] == 0
    # One of two nodes' sums, which are alike in size, crosses.
    assert large["reduce_scatter", "quant"]["error"] == pytest.approx((0.0115 / 2) ** 0.5, rel=0.05)
    assert "#wrong in all: 0" in out


def test_a_bad_size_is_named():
    assert "64Q" in refused("collectives", "--min-bytes", "64Q")
