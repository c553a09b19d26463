"""`isthmus bench convergence`: data, and training on simulated nodes."""

import json
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import isthmus
from isthmus._C import SimulatedNodes
from isthmus.bench.config import ModelShape
from isthmus.bench.convergence_arms import BASELINE
from isthmus.bench.convergence_config import text_digest
from isthmus.bench.convergence_noise import RELATIVE_SQUARED_ERROR, add_noise
from isthmus.bench.convergence_simulated import FlatUnit, SimulatedTraining, train_simulated
from isthmus.bench.convergence_training import Batches, crossing_bytes
from isthmus.bench.model import ByteGpt, loss_of
from python.benchmarks.convergence_runs import TINY, tiny_run
from support import ranks

HEADER_BYTES = 48


# Data.


def test_batches_depend_on_the_seed_and_are_shared_out_among_ranks(files):
    batches = Batches(files, TINY, 1)
    whole = batches.batch(3, 0, 1)
    assert whole.shape == (8, 17)
    assert torch.equal(torch.cat([batches.batch(3, rank, 4) for rank in range(4)]), whole)
    assert torch.equal(Batches(files, TINY, 1).batch(3, 0, 1), whole)
    assert not torch.equal(batches.batch(4, 0, 1), whole)
    other = Batches(files, TINY, 2)
    assert not torch.equal(other.batch(3, 0, 1), whole)
    held_out = torch.cat(list(batches.validation_batches(0, 1)))
    assert torch.equal(torch.cat(list(other.validation_batches(0, 1))), held_out)
    parts = [torch.cat(list(batches.validation_batches(rank, 3))) for rank in range(3)]
    assert sorted(map(tuple, torch.cat(parts).tolist())) == sorted(map(tuple, held_out.tolist()))


def test_the_text_is_told_apart(files):
    before = text_digest(files)
    files[0].write_bytes(files[0].read_bytes() + b"!")
    assert text_digest(files) != before


# Simulated nodes.


def gradients_of_ranks(world_size, step, dtype):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(8192, generator=generator).to(dtype) for _ in range(world_size)]


# Without tiers="flat": there each transport adds the sketches of more than two ranks in an order of its own.
CODECS = {"none": {"codec": "none"}, "tagc": {"codec": "tagc"}, "default": {}}
REDUCED_DTYPES = (torch.float32, torch.bfloat16)


def _bytes(tensor):
    return tensor.view(torch.uint8).numpy().tobytes()


def reduced_by_processes(rank, world_size):
    """This rank's shards and sums, as bytes: by codec, type and step."""
    ranks.init("gloo")
    shards = {}
    for name, options in CODECS.items():
        group = dist.new_group(backend="isthmus", pg_options=isthmus.Options(nodes="2x2", min_elements=0, **options))
        for dtype in REDUCED_DTYPES:
            for step in range(3):
                shard = torch.empty(8192 // world_size, dtype=dtype)
                with isthmus.unit("unit"):
                    gradient = gradients_of_ranks(world_size, step, dtype)[rank]
                    dist.reduce_scatter_tensor(shard, gradient, op=dist.ReduceOp.AVG, group=group)
                shards[name, dtype, step] = _bytes(shard)
                with isthmus.unit("unit"):
                    dist.all_reduce(gradient, op=dist.ReduceOp.AVG, group=group)
                shards[name, dtype, step, "sum"] = _bytes(gradient)
        shards[name] = crossing_bytes([isthmus.stats(group)])
    return shards


@pytest.mark.processes
def test_simulated_nodes_equal_processes_bit_for_bit():
    by_rank = ranks.run(reduced_by_processes, 4)
    for name, options in CODECS.items():
        nodes = SimulatedNodes(num_nodes=2, ranks_per_node=2, options=isthmus.Options(min_elements=0, **options))
        for dtype in REDUCED_DTYPES:
            for step in range(3):
                whole = nodes.reduce("unit", gradients_of_ranks(4, step, dtype), 0.25)
                expected = b"".join(shards[name, dtype, step] for shards in by_rank)
                assert _bytes(whole) == expected, (name, dtype, step)
                summed = nodes.all_reduce("unit", gradients_of_ranks(4, step, dtype), 0.25)
                for shards in by_rank:
                    assert _bytes(summed) == shards[name, dtype, step, "sum"], (name, dtype, step)
        assert crossing_bytes(nodes.stats()) == sum(shards[name] for shards in by_rank)


def test_simulated_nodes_refuse_what_is_wrong_and_go_on():
    nodes = SimulatedNodes(num_nodes=2, options=isthmus.Options(codec="none", min_elements=0))
    good = [torch.ones(8), torch.ones(8)]
    for wrong, message in (
        (good[:1], "1 gradients for 2 ranks"),
        ([torch.ones(7)] * 2, "expected a multiple of the 2 ranks"),
        ([torch.ones(8), torch.ones(6)], "gradients differ"),
        ([torch.ones(8), torch.ones(8, dtype=torch.bfloat16)], "gradients differ"),
        ([torch.ones(8, dtype=torch.float64)] * 2, "expected float32 or bfloat16"),
        ([torch.ones(2, 4)] * 2, "contiguous tensors of one dimension"),
        ([torch.ones(16)[::2]] * 2, "contiguous tensors of one dimension"),
        ([], "0 gradients for 2 ranks"),
    ):
        with pytest.raises(isthmus.Error, match=message):
            nodes.reduce("unit", wrong, 1.0)
    assert torch.equal(nodes.reduce("unit", good, 0.5), torch.ones(8))
    with pytest.raises(isthmus.OptionError, match="num_nodes=0: expected 1 to 64"):
        SimulatedNodes(num_nodes=0, options=isthmus.Options())


def test_a_flat_unit_is_in_the_layout_of_the_reduction():
    matrix = torch.nn.Parameter(torch.arange(8.0).view(4, 2))
    vector = torch.nn.Parameter(torch.tensor([10.0, 11.0]))
    unit = FlatUnit("unit", [matrix, vector], 2)
    assert unit.master.tolist() == [0, 1, 2, 3, 10, 4, 5, 6, 7, 11]
    (matrix.sum() * 2 + (vector * vector).sum() / 2).backward()
    assert unit.take_gradient().tolist() == [2, 2, 2, 2, 10, 2, 2, 2, 2, 11]
    assert matrix.grad is None
    with torch.no_grad():
        unit.master += 100
    unit.load_parameters()
    assert matrix.tolist() == [[100, 101], [102, 103], [104, 105], [106, 107]]
    assert vector.tolist() == [110, 111]


def test_exact_training_is_training(files):
    """One step in float32 with `none` equals AdamW on the whole batch, within rounding."""
    setting = replace(TINY, dtype="fp32")
    training = SimulatedTraining(tiny_run(setting=setting), files)
    training.step(0)
    torch.manual_seed(1)
    model = ByteGpt(ModelShape(setting.width, setting.num_layers, setting.context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    loss_of(model, Batches(files, setting, 1).batch(0, 0, 1)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    trained = dict(training._model.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter, rtol=1e-3, atol=2e-4, msg=name)


def test_a_screening_run_counts_what_crossed(files):
    exact, repeated = (train_simulated(tiny_run(), files) for _ in range(2))
    # bfloat16, both directions together; and the header of a packet for each unit and direction.
    assert exact["sent_bytes"] == TINY.steps * (exact["num_parameters"] * 2 + 2 * 2 * HEADER_BYTES)
    assert [point["step"] for point in exact["validated"]] == [2, 4, 6, 8]
    assert exact["validated"][-1]["loss"] == exact["val_loss"] < exact["validated"][0]["loss"]
    assert repeated["validated"] == exact["validated"]
    lossy = train_simulated(tiny_run("tagc-10x"), files)
    assert lossy["compressed_calls"] == 2 * TINY.steps
    assert lossy["sent_bytes"] < exact["sent_bytes"]
    flat = train_simulated(tiny_run("tagc-10x-flat"), files)
    assert flat["compressed_calls"] == 2 * TINY.steps


@pytest.mark.parametrize("num_elements", [3 * 128 * 50, 3 * (128 * 50 + 7)])
def test_noise_is_of_one_size_and_spares_the_own_part(num_elements):
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(num_elements, generator=generator) * (torch.arange(num_elements) % 4)
    for kind in ("spread", "alike"):
        own, *others = (part.chunk(3) for part in (gradient, add_noise(gradient, 1, 3, kind, generator)))
        (noisy,) = others
        assert torch.equal(noisy[1], own[1])
        for part in (0, 2):
            dropped = (noisy[part] - own[part]).square().sum() / own[part].square().sum()
            assert float(dropped) == pytest.approx(RELATIVE_SQUARED_ERROR, rel=0.2)
        zeros = own[0] == 0
        assert bool((noisy[0][zeros] == 0).all()) == (kind == "alike")
    with pytest.raises(ValueError, match="noise 'white': expected spread, alike or dropped"):
        add_noise(gradient, 0, 3, "white", generator)


def test_where_nothing_is_sent_a_node_takes_its_own_part_for_the_mean():
    gradient = torch.arange(1.0, 7.0)
    dropped = add_noise(gradient, 1, 3, "dropped", torch.Generator())
    assert dropped.tolist() == [0, 0, 9, 12, 0, 0]


def test_a_run_with_noise_sends_what_an_exact_one_does(files):
    exact, noisy = (train_simulated(tiny_run(arm), files) for arm in (BASELINE, "noise-spread"))
    assert noisy["sent_bytes"] == exact["sent_bytes"]
    assert noisy["val_loss"] != exact["val_loss"]
    assert noisy["compressed_calls"] == 0


def test_a_run_that_diverges_ends(files):
    result = train_simulated(tiny_run(lr=1e30), files)
    assert result["val_loss"] is None
    assert result["steps_done"] < TINY.steps
    json.dumps(result, allow_nan=False)
