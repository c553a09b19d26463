"""`isthmus bench convergence`: data, simulated nodes, screening, and tiny runs from end to end."""

import json
import math
import multiprocessing
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest
import torch
import torch.distributed as dist
from rich.console import Console

import isthmus
from isthmus._C import SimulatedNodes
from isthmus.bench import convergence_screen
from isthmus.bench.config import ModelShape
from isthmus.bench.convergence import ConvergenceConfig
from isthmus.bench.convergence_arms import ARMS, BASELINE
from isthmus.bench.convergence_config import Run, text_digest
from isthmus.bench.convergence_finalists import Finals, best_lr, run_finals
from isthmus.bench.convergence_noise import RELATIVE_SQUARED_ERROR, add_noise
from isthmus.bench.convergence_results import ResultsFile
from isthmus.bench.convergence_screen import Screening, screen
from isthmus.bench.convergence_simulated import FlatUnit, SimulatedTraining, train_simulated
from isthmus.bench.convergence_training import Batches, crossing_bytes
from isthmus.bench.convergence_workers import Workers
from isthmus.bench.model import ByteGpt, loss_of
from isthmus.simulate import RankFailure
from python.benchmarks.bench_cli import children, run, start, wait_for_line
from python.benchmarks.convergence_runs import TINY, fake_result, tiny_run, write_text
from support import ranks
from support.limits import HANG_S

HEADER_BYTES = 48
TINY_WORDS = (
    "--steps",
    8,
    "--sequences",
    8,
    "--validation-sequences",
    16,
    "--width",
    64,
    "--layers",
    1,
    "--context",
    16,
)


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "text"
    write_text(path)
    return (path,)


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


# Screening.


@pytest.fixture
def fake_runs(monkeypatch):
    """Runs that were made, in place of real ones: the loss is least at learning rate 0.008."""
    done = []

    class FakeWorkers:
        def __init__(self, jobs, files):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def finish(self, runs):
            for each in runs:
                done.append(each)
                loss = 2 + abs(math.log2(each.lr / 0.008)) + 0.01 * each.seed + (each.arm != BASELINE) * 0.04
                yield each, fake_result(loss, seconds=1.0)

    monkeypatch.setattr(convergence_screen, "Workers", FakeWorkers)
    return done


def screening(files, *arms, **changes):
    chosen = tuple(ARMS[name] for name in (BASELINE, *arms))
    return replace(Screening(setting=TINY, arms=chosen, seeds=(1, 2), files=files), **changes)


def test_the_baseline_is_tuned_first(fake_runs, files, tmp_path):
    with ResultsFile(tmp_path / "results.jsonl") as results:
        assert screen(screening(files, "tagc-2x"), results, Console(quiet=True)) == {}
        tuning = [each.lr for each in fake_runs[:8]]
        assert tuning == pytest.approx([lr for lr in (0.002, 0.004, 0.008, 0.016) for _ in range(2)])
        screened = [(each.arm, each.lr, each.seed) for each in fake_runs[8:]]
        assert screened == [("tagc-2x", lr, seed) for seed in (1, 2) for lr in (0.008, 0.004)]
        assert best_lr(results, replace(TINY, nodes=4)) == 0.008
        with pytest.raises(ValueError, match="no learning rate: screen this setting first"):
            best_lr(results, replace(TINY, optimizer="sgd"))
        fake_runs.clear()
        screen(screening(files, "tagc-2x", "tagc-4x"), results, Console(quiet=True))
        assert {each.arm for each in fake_runs} == {"tagc-4x"}


def test_an_arm_whose_codec_is_missing_is_named_and_the_others_run(fake_runs, files, tmp_path, monkeypatch):
    broken = replace(ARMS["tagc-2x"], name="broken", options=ARMS["tagc-2x"].options | {"index_bits": 3})
    monkeypatch.setitem(ARMS, "broken", broken)
    with ResultsFile(tmp_path / "results.jsonl") as results:
        refused = screen(screening(files, "broken", "tagc-4x"), results, Console(quiet=True))
    assert list(refused) == ["broken"]
    assert "index_bits" in refused["broken"]
    assert {each.arm for each in fake_runs} == {BASELINE, "tagc-4x"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, "no seeds"),
        ({"jobs": 0}, "jobs 0: expected 1 to 256"),
        ({"setting": replace(TINY, sequences=9)}, "sequences 9: expected a multiple of 2"),
        ({"setting": replace(TINY, nodes=3, sequences=9)}, "width 64: expected a multiple of 3"),
    ],
)
def test_what_cannot_be_screened_is_named(files, changes, message):
    with pytest.raises(ValueError, match=message):
        screening(files, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 3}, "steps 3: expected 4 to"),
        ({"nodes": 9}, "nodes 9: expected 2 to 8"),
        ({"optimizer": "adam"}, "optimizer 'adam': expected one of adamw, sgd"),
        ({"dtype": "fp16"}, "dtype 'fp16': expected one of bf16, fp32"),
        ({"width": 100}, "width 100: expected a multiple of 64"),
        ({"layout": "ddp"}, "layout 'ddp': expected one of fsdp, hsdp"),
    ],
)
def test_a_setting_out_of_range_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


# From end to end.


def kill_the_first_worker():
    while not multiprocessing.active_children():
        time.sleep(0.01)
    multiprocessing.active_children()[0].kill()


@pytest.mark.processes
def test_a_worker_that_fails_is_named(files):
    wrong = replace(tiny_run("tagc-2x"), options=(("codec", "tagc"), ("index_bits", 3)))
    with Workers(1, files) as workers:
        assert [run for run, _ in workers.finish([tiny_run()])] == [tiny_run()]
        with pytest.raises(RankFailure, match=r"tagc-2x, adamw, lr 0\.01, seed 1: OptionError: option index_bits="):
            list(workers.finish([wrong]))
    with Workers(1, files) as workers:
        killer = threading.Thread(target=kill_the_first_worker)
        killer.start()
        with pytest.raises(RankFailure, match="the process that ran it ended with exit code -9"):
            list(workers.finish([tiny_run()]))
        killer.join()
    assert not multiprocessing.active_children()


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.processes
def test_screening_goes_on_where_it_was_interrupted(files, tmp_path):
    words = ("convergence", "--arms", "tagc-10x", "--optimizers", "adamw", "--seeds", 2, "--lr", 0.01, *TINY_WORDS)
    words = (*words, "--text", files[0], "--output", tmp_path)
    process = start(*words)
    try:
        wait_for_line(process, "exact, adamw, lr 0.01, seed 1:")
        workers = children(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
        _, left = psutil.wait_procs(workers, timeout=HANG_S)
        assert not any(is_alive(worker) for worker in left)
    finally:
        process.kill()
        process.communicate()
    path = tmp_path / "convergence.jsonl"
    first = path.read_bytes()
    assert 1 <= first.count(b"\n") < 8
    code, _, err = run(*words, "--jobs", 2)
    assert code == 0, err
    whole = path.read_bytes()
    assert whole.startswith(first)
    assert whole.count(b"\n") == 8
    assert "`tagc-10x`" in (tmp_path / "convergence.md").read_text()


@pytest.mark.processes
def test_a_finalist_on_the_backend_equals_its_screening(files, tmp_path):
    setting = replace(TINY, sequences=6, nodes=2)
    finals = Finals(setting, (ARMS["tagc-10x"],), (1,), (2,), ("1gbit",), files, 0.01)
    with ResultsFile(tmp_path / "results.jsonl") as results:
        run_finals(finals, results, tmp_path / "logs", Console(quiet=True))
        kinds = [Run.from_json(record["run"]).stage for record in results.records]
        real = results.records[0]["result"]
        run_finals(finals, results, tmp_path / "logs", Console(quiet=True))
        assert len(results.records) == len(kinds)
    assert kinds in (["real", "timed"], ["real"])  # not timed where no link can be shaped
    screened = train_simulated(tiny_run("tagc-10x", setting=setting), files)
    assert real["sent_bytes"] == screened["sent_bytes"]
    assert real["val_loss"] == pytest.approx(screened["val_loss"], rel=1e-3)
    assert real["train_loss"][0] == pytest.approx(screened["train_loss"][0], rel=1e-6)


GOOD_ARGUMENTS = {
    "stage": "both",
    "arms": ("tagc-2x",),
    "finalists": ("tagc-2x",),
    "optimizers": ("adamw",),
    "num_seeds": None,
    "lr": None,
    "half_lr": True,
    "nodes": None,
    "links": ("50mbit",),
    "setting": TINY,
    "files": ("text",),
    "jobs": 1,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage": "third"}, "stage 'third': expected one of screen, finalists, both"),
        ({"lr": 0}, "lr 0: expected above 0 and below 10"),
        ({"num_seeds": 0}, "seeds 0: expected 1 to 1000"),
        ({"arms": ("zip",)}, "arm 'zip': expected globs"),
        ({"optimizers": ("adam",)}, "optimizer 'adam': expected one of"),
        ({"finalists": tuple(ARMS)[1:8]}, "7 finalists: expected 1 to 6"),
        ({"finalists": (BASELINE,)}, "0 finalists: expected 1 to 6"),
        ({"finalists": ("tagc-2x", "tagc-2x")}, "finalist 'tagc-2x' is named twice"),
        ({"finalists": ("noise-alike",)}, "finalist 'noise-alike' is no codec"),
        ({"links": ("fast",)}, "fast"),
        ({"nodes": (9,)}, "nodes 9: expected 2 to 8"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    ConvergenceConfig(**GOOD_ARGUMENTS)
    with pytest.raises(ValueError, match=message):
        ConvergenceConfig(**(GOOD_ARGUMENTS | changes))


@pytest.mark.processes
def test_bad_arguments_are_told_before_anything_runs(tmp_path):
    code, _, err = run("convergence", "--nodes", "two", "--output", tmp_path)
    assert code == 2
    assert "'two': expected a whole number" in err
    assert not list(tmp_path.iterdir())
