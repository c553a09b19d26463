"""`python -m isthmus.benchmarks.convergence`: arms, results, what is made of them, and a tiny run from end to end."""

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch.distributed as dist
from rich.console import Console

import isthmus
from isthmus.benchmarks.common.shape import ModelShape
from isthmus.benchmarks.convergence.arms import ARMS, BASELINE, FINALISTS
from isthmus.benchmarks.convergence.config import ConvergenceConfig, Setting
from isthmus.benchmarks.convergence.results import ResultsFile, Run, make_run, read_results
from isthmus.benchmarks.convergence.run import merged
from isthmus.benchmarks.convergence.summary import print_summary, summarise
from isthmus.benchmarks.convergence.worker import Worker
from isthmus.benchmarks.simulate.ranks import ignore
from python.benchmarks.bench_cli import assert_gone, children, run, start, wait_for_line
from support import ranks
from support.limits import HANG_S, OPERATION_S

HEADER_BYTES = 48
TINY = Setting(steps=8, validation_sequences=16)


def tiny_run(arm=BASELINE, lr=0.01, seed=1, setting=TINY):
    return make_run(setting, ARMS[arm], lr, seed, "text")


def fake_result(val_loss=2.0, sent_bytes=1000):
    return {
        "val_loss": val_loss,
        "steps_done": TINY.steps,
        "sent_bytes": sent_bytes,
        "num_parameters": 100,
        "relative_error": 0.25,
    }


def results_of(*pairs):
    return {each.key: (each, result) for each, result in pairs}


def test_every_arm_sets_the_options_of_its_codec_and_no_two_are_the_same():
    for arm in ARMS.values():
        made = isthmus.Options(**arm.options)
        assert {name: getattr(made, name) for name in arm.options} == arm.options, arm.name
    settings = {
        json.dumps([arm.options, arm.layout, arm.local_steps, arm.ranks_per_node], sort_keys=True)
        for arm in ARMS.values()
    }
    assert len(settings) == len(ARMS)
    assert all(name in ARMS for name in FINALISTS)
    assert ARMS["tagc-10x-flat"].ranks_per_node == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0}, "lr 0: expected above 0 and below 10"),
        ({"optimizers": ("sgd",)}, "optimizer 'sgd': expected some of adamw, muon"),
        ({"finalists": ("zip",)}, "finalist 'zip': expected some of exact, "),
        ({"dtype": "bf16", "finalists": ("ddp-quant-4",)}, "dtype 'bf16': ddp-quant-4 trains in fp32"),
        ({"nodes": (3,)}, "sequences 32: expected a multiple of 3, the number of ranks"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    assert [arm.name for arm in ConvergenceConfig(finalists=("tagc-2x",)).arms()] == [BASELINE, "tagc-2x"]
    with pytest.raises(ValueError, match=message):
        ConvergenceConfig(**changes)


# Results.


def test_a_run_survives_the_file_and_a_line_that_was_cut_off_does_not(tmp_path):
    path = tmp_path / "results.jsonl"
    file = ResultsFile(path)
    file.append(tiny_run(), fake_result())
    file.append(tiny_run(seed=2), fake_result())
    assert read_results(path) == results_of((tiny_run(), fake_result()), (tiny_run(seed=2), fake_result()))
    assert Run.from_json(json.loads(json.dumps(asdict(tiny_run())))) == tiny_run()
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert read_results(path).keys() == {tiny_run().key}
    ResultsFile(path).append(tiny_run(seed=2), fake_result())
    assert path.read_bytes() == whole


# Tables.


def some_results():
    """Gaps of tagc-2x of 1% and 3%, and a quarter of the bits; a run without its pair; and one of another rate."""
    pairs = []
    for seed, base, ours in ((1, 2.0, 2.02), (2, 4.0, 4.12)):
        pairs.append((tiny_run(seed=seed), fake_result(base, 8 * 100 * 4)))
        pairs.append((tiny_run("tagc-2x", seed=seed), fake_result(ours, 8 * 100)))
    pairs.append((tiny_run("tagc-4x", seed=3), fake_result()))
    return [*pairs, (tiny_run(lr=0.02), fake_result())]


def test_gaps_are_those_of_pairs(capsys):
    results = results_of(*some_results())
    ((first, loss, (exact, arm)),) = summarise(results)
    assert (first.lr, loss, arm.arm, arm.crossing_bits) == (0.01, 3.0, "tagc-2x", 8)
    assert arm.gaps == pytest.approx((0.01, 0.03))
    assert (exact.arm, exact.crossing_bits) == (BASELINE, 32)
    assert arm.gap == "+2.00% ± 12.71"  # standard deviation 0.01414, two values: 12.706 * 0.01
    print_summary(results, Console())
    assert "tagc-2x    8.00   +2.00% ± 12.71   0.250       2" in capsys.readouterr().out
    pairs = some_results()
    pairs[1][1]["val_loss"] = None
    ((_, _, (_, arm)),) = summarise(results_of(*pairs))
    assert (arm.gap, arm.num_diverged) == ("1 diverged", 1)


def test_results_of_ranks_are_merged():
    units = [{"coded_elements": 100, "relative_squared_error": 0.25}]
    answer = {"steps_done": 8, "total_loss": 6.0, "count": 2, "sent_bytes": 40, "num_parameters": 5, "units": units}
    measured = {"coded_elements": 300, "relative_squared_error": 0.5}
    not_measured = {"coded_elements": 100, "relative_squared_error": None}
    answer["train_s"] = 2.0
    other = answer | {"train_s": 4.0, "total_loss": 2.0, "units": [measured, not_measured]}
    result = merged(tiny_run(), [answer, other])
    assert (result["val_loss"], result["sent_bytes"], result["relative_error"]) == (2.0, 80, 0.4375)
    assert result["step_s"] == 0.5, "the slowest rank's"
    cut = merged(tiny_run(), [each | {"steps_done": 5} for each in (answer, other)])
    assert cut["val_loss"] is None


# From end to end.


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(b"".join(b"line %d of a text that repeats itself\n" % (number % 97) for number in range(2000)))
    return path


SMALL = Setting(steps=11, validation_sequences=16, shape=ModelShape(width=128, num_layers=2, context=32))
FINISHED = ("exact", "hsdp-quant-4", "ddp-quant-4", "diloco-10-4-fb")


def train_each(rank, world_size, text, ports):
    """The answers of this rank to eleven steps of Muon, which are two means of DiLoCo: after 10 and after the last."""
    answers = []
    for arm, port in zip(FINISHED, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        worker = Worker()
        run = make_run(SMALL, ARMS[arm], 0.002, 1, "text", 0.008)
        worker.setup(ignore, run, [Path(text)], OPERATION_S)
        answers.append(worker.train(ignore))
        dist.destroy_process_group()
    return answers


@pytest.mark.processes
def test_each_layout_trains_and_sends_what_it_should(text):
    ports = [ranks.free_port() for _ in FINISHED]
    of_ranks = ranks.run(train_each, 2, str(text), ports, env={"ISTHMUS_NODES": "2x1", "GLOO_SOCKET_IFNAME": "lo"})
    results = {arm: merged(tiny_run(setting=SMALL), answers) for arm, *answers in zip(FINISHED, *of_ranks, strict=True)}
    exact = results["exact"]
    # float32, both directions together; and the header of a packet for each unit and direction.
    assert exact["sent_bytes"] == 11 * (exact["num_parameters"] * 4 + 3 * 2 * HEADER_BYTES)
    assert all(1 < result["val_loss"] < 4.5 for result in results.values()), "all have trained, from 5.5"
    # An all-reduce sends a sum and its result, each element from one node to the other. The first pass is exact with
    # DDP, and so are two with the buckets that it then builds.
    for arm, exact_steps, coded in (("hsdp-quant-4", 0, 11), ("ddp-quant-4", 3, 8), ("diloco-10-4-fb", 0, 2)):
        bits = results[arm]["sent_bytes"] * 8 / (2 * results[arm]["num_parameters"])
        assert 4 < (bits - 32 * exact_steps) / coded < 4.5, arm


@pytest.mark.processes
def test_an_interrupted_run_resumes(tmp_path, text):
    words = ["convergence", "--finalists", "hsdp-quant-4", "--link", "1gbit", "--seeds", 1, "--nodes", 2, "--steps", 1]
    words += ["--validation-sequences", 16, "--text", text, "--output", tmp_path]
    process = start(*words)
    try:
        wait_for_line(process, "exact, 2 nodes")
        workers = children(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
        assert_gone(workers)
    finally:
        process.kill()
        process.communicate()
    path = tmp_path / "convergence.jsonl"
    first = path.read_bytes()
    assert first.count(b"\n") == 1
    code, out, err = run(*words)
    assert code == 0, err
    assert path.read_bytes().startswith(first)
    assert [run.arm for run, _ in read_results(path).values()] == ["exact", "hsdp-quant-4"]
    assert "hsdp-quant-4" in out and "2 nodes at 1gbit" in out and "s a step" in out
