"""`isthmus bench convergence`: data, simulated nodes, and tiny runs from end to end."""

import signal
from dataclasses import replace

import psutil
import pytest
import torch

from isthmus.benchmarks.convergence.arms import ARMS, BASELINE
from isthmus.benchmarks.convergence.config import ConvergenceConfig
from isthmus.benchmarks.convergence.results import read_results
from isthmus.benchmarks.convergence.runs import Run, text_digest
from isthmus.benchmarks.convergence.training import Batches
from python.benchmarks.bench_cli import children, refused, run, start, wait_for_line
from python.benchmarks.convergence_runs import TINY, write_text
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


def test_texts_have_different_digests(files):
    before = text_digest(files)
    files[0].write_bytes(files[0].read_bytes() + b"!")
    assert text_digest(files) != before


# Simulated nodes.


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


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.processes
def test_an_interrupted_run_resumes(files, tmp_path):
    words = (
        "convergence",
        "--finalists",
        "tagc-10x",
        "--optimizers",
        "adamw",
        "--seeds",
        1,
        "--lr",
        0.01,
        "--nodes",
        2,
    )
    words = (*words, *TINY_WORDS, "--link", "1gbit", "--text", files[0], "--output", tmp_path)
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
    assert first.count(b"\n") == 1
    code, _, err = run(*words)
    assert code == 0, err
    whole = path.read_bytes()
    assert whole.startswith(first)
    results = read_results(path)
    kinds = [Run.from_json(record["run"]).stage for record in results.records]
    assert kinds in (["real"] * 2 + ["timed"] * 2, ["real"] * 2)  # not timed where no link can be shaped
    exact, lossy = (record["result"] for record in results.records[:2])
    # bfloat16, both directions together; and the header of a packet for each unit and direction.
    assert exact["sent_bytes"] == TINY.steps * (exact["num_parameters"] * 2 + 2 * 2 * HEADER_BYTES)
    assert [point["step"] for point in exact["validated"]] == [2, 4, 6, 8]
    assert exact["validated"][-1]["loss"] == exact["val_loss"] < exact["validated"][0]["loss"]
    assert lossy["sent_bytes"] < exact["sent_bytes"]
    assert "`tagc-10x`" in (tmp_path / "convergence.md").read_text()


GOOD_ARGUMENTS = {"finalists": ("tagc-2x",), "optimizers": ("adamw",), "links": ("50mbit",), "setting": TINY}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0}, "lr 0: expected above 0 and below 10"),
        ({"num_seeds": 0}, "num_seeds 0: expected 1 to 1000"),
        ({"finalists": ("zip",)}, "finalist 'zip': expected some of"),
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


def test_bad_arguments_are_reported_before_anything_runs(tmp_path):
    assert "'two': expected a whole number" in refused("convergence", "--nodes", "two", "--output", tmp_path)
    assert not list(tmp_path.iterdir())
