"""`isthmus bench collectives`: the checks that it makes can fail, and a tiny run from end to end."""

import json

import pytest
import torch

from isthmus.benchmarks.collectives import reference
from isthmus.benchmarks.collectives.config import CollectivesConfig
from isthmus.benchmarks.collectives.worker import Worker
from python.benchmarks.bench_cli import refused, run


def flip_bit(values, place, bit):
    words = values.clone().view(torch.int32)
    words[place] ^= 1 << bit
    return words.view(torch.float32)


@pytest.mark.parametrize(
    ("backend", "damage", "num_wrong"),
    [
        ("gloo", lambda result: result, 0),
        ("none", lambda result: result.index_fill(0, torch.tensor([3, 7]), torch.nan), 2),
        ("quant", lambda result: result, 0),
        ("quant", lambda result: result.index_add(0, torch.tensor([5]), torch.tensor([2.0])), 1),
        ("quant", lambda result: flip_bit(result, 5, 30), 1),  # the highest of the exponent
        ("quant", lambda result: result.index_fill(0, torch.tensor([3, 7]), torch.nan), 2),
        ("quant", lambda result: result + 0.5 * result.sign(), 1000),  # each could be, all cannot
        ("tagc", lambda result: result * (torch.arange(1000) % 2), 0),
        ("tagc", lambda result: result.flip(0), 1000),
        ("tagc", lambda result: result * torch.nan, 1000),
    ],
)
def test_what_is_wrong_is_counted(backend, damage, num_wrong):
    """In a reduce-scatter over two nodes of two ranks, rank 0 has 1000 of 4000 elements."""
    worker = Worker()
    worker._rank, worker._world_size, worker._ranks_per_node = 0, 4, 2
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4000, generator=generator) for _ in range(4)]
    exact = torch.stack(inputs).double().sum(0)[:1000].float()
    if backend in ("gloo", "none"):
        inputs = [tensor.round() for tensor in inputs]
        exact = torch.stack(inputs).sum(0)[:1000]
    assert worker._verify("reduce_scatter", backend, inputs, damage(exact))["num_wrong"] == num_wrong


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
        ("operations", ("broadcast",), "operation 'broadcast'"),
        ("backends", ("nccl",), "backend 'nccl': expected some of gloo, none, flat-tagc, tagc"),
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
    assert large["all_gather", "tagc"]["error"] == 0
    assert large["all_reduce", "tagc"]["error"] > 0.1
    assert large["all_reduce", "flat-tagc"]["error"] == 0
    # One of two nodes' sums, which are alike in size, crosses.
    assert large["reduce_scatter", "quant"]["error"] == pytest.approx((0.0115 / 2) ** 0.5, rel=0.05)
    assert "#wrong in all: 0" in out


def test_a_bad_size_is_named():
    assert "64Q" in refused("collectives", "--min-bytes", "64Q")


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_reduce"])
def test_what_codes_err_by_is_not_wrong(operation):
    """Errors of sums of whole numbers have longer tails than those of normal values; one group has few samples."""
    worker = Worker()
    worker._rank, worker._world_size, worker._ranks_per_node = 0, 4, 2
    for num_elements in (4 * 64, 4 * 128, 4 * 100_000):
        generator = torch.Generator().manual_seed(num_elements)
        inputs = [torch.randint(-2, 3, (num_elements,), generator=generator).float() for _ in range(4)]
        of_nodes = [inputs[0] + inputs[1], inputs[2] + inputs[3]]
        if operation == "reduce_scatter":
            of_nodes = [one.chunk(4)[0] for one in of_nodes]
        result = of_nodes[0] + arrives(of_nodes[1])
        result = result if operation == "reduce_scatter" else arrives(result)
        exact = worker._expected(operation, inputs)
        assert worker._num_far(operation, "quant", inputs, result, exact) == 0


def arrives(values):
    whole = len(values) - len(values) % 128
    draws = torch.Generator().manual_seed(1)
    return torch.cat([reference._arrives(values[:whole].view(-1, 128), 4, draws).flatten(), values[whole:]])
