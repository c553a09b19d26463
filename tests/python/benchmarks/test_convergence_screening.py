"""`isthmus bench convergence`: screening, and tiny runs from end to end."""

import math
import multiprocessing
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest
from rich.console import Console

from isthmus.bench import convergence_screen
from isthmus.bench.convergence import ConvergenceConfig
from isthmus.bench.convergence_arms import ARMS, BASELINE
from isthmus.bench.convergence_config import Run
from isthmus.bench.convergence_finalists import Finals, best_lr, run_finals
from isthmus.bench.convergence_results import ResultsFile
from isthmus.bench.convergence_screen import Screening, screen
from isthmus.bench.convergence_simulated import train_simulated
from isthmus.bench.convergence_workers import Workers
from isthmus.simulate import RankFailure
from python.benchmarks.bench_cli import children, run, start, wait_for_line
from python.benchmarks.convergence_runs import TINY, fake_result, tiny_run
from support.limits import HANG_S

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
