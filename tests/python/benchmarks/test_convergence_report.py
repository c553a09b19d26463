"""What `isthmus bench convergence` makes of its results: statistics, the file, the report."""

import json
import math
from dataclasses import replace

import pytest

import isthmus
from isthmus.benchmarks.convergence.arms import ARMS, BASELINE, FINALISTS, FLOOR
from isthmus.benchmarks.convergence.config import MAX_FINALISTS, finalists_named
from isthmus.benchmarks.convergence.report import write_report
from isthmus.benchmarks.convergence.results import Results, ResultsFile, read_results
from isthmus.benchmarks.convergence.run import best_lr, merged
from isthmus.benchmarks.convergence.runs import Run
from isthmus.benchmarks.convergence.statistics import mean_interval
from isthmus.benchmarks.convergence.summary import cheapest_within, summarise
from isthmus.benchmarks.convergence.training import averaged, lr_share, validated_steps
from python.benchmarks.convergence_runs import TINY, fake_result, tiny_run

# Statistics.


def test_interval_of_a_mean():
    # Mean 2, standard deviation 1, three values: 4.3027 / sqrt(3).
    interval = mean_interval([1.0, 2.0, 3.0])
    assert (interval.mean, interval.num_values) == (2.0, 3)
    assert interval.half_width == pytest.approx(2.48414, abs=1e-4)
    assert (interval.low, interval.high) == (interval.mean - interval.half_width, interval.mean + interval.half_width)
    assert mean_interval([5.0, 5.0]).half_width == 0
    assert mean_interval([5.0]).high == math.inf


def test_the_best_learning_rate_is_that_of_the_baseline():
    results = Results()
    for lr, loss in ((0.01, 2.1), (0.02, 2.0), (0.04, 2.2)):
        results._add({"run": tiny_run(lr=lr).as_json(), "result": fake_result(loss)})
        results._add({"run": tiny_run("tagc-2x", lr=lr).as_json(), "result": fake_result(4 - loss)})
    assert best_lr(results, replace(TINY, nodes=4)) == 0.02
    with pytest.raises(ValueError, match="no learning rate: give --lr"):
        best_lr(results, replace(TINY, optimizer="sgd"))


def test_schedule():
    shares = [lr_share(step, 100) for step in range(100)]
    assert shares[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert 0.1 < shares[-1] < 0.11
    assert lr_share(0, 1) == 1
    assert validated_steps(500) == [125, 250, 375, 500]
    assert averaged([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert averaged([1.0, 3.0]) == [1.0, 3.0]


# Arms.


def test_every_arm_sets_all_options_of_its_codec():
    for arm in ARMS.values():
        options = arm.options_for(100)
        made = isthmus.Options(**options)
        assert {name: getattr(made, name) for name in options} == options, arm.name
    assert len(FINALISTS) <= MAX_FINALISTS
    assert all(name in ARMS for name in FINALISTS)
    assert ARMS["quant-2-dense"].options_for(200)["dense_steps"] == 20
    assert ARMS["tagc-10x-flat"].ranks_per_node == 2


def test_no_two_arms_are_the_same():
    alike = [json.dumps([arm.options_for(100), arm.ranks_per_node, arm.noise], sort_keys=True) for arm in ARMS.values()]
    assert len(set(alike)) == len(alike)


def test_finalists_are_chosen_by_name():
    assert [arm.name for arm in finalists_named(["tagc-2x"])] == [BASELINE, "tagc-2x"]
    with pytest.raises(ValueError, match="finalist 'tagc': expected some of exact, "):
        finalists_named(["tagc"])


# Results.


def test_a_run_survives_the_file(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as results:
        assert results.result(tiny_run()) is None
        results.append(tiny_run(), fake_result())
        assert results.result(tiny_run()) == fake_result()
    read = read_results(path)
    assert read.result(tiny_run()) == fake_result()
    assert Run.from_json(json.loads(json.dumps(tiny_run().as_json()))) == tiny_run()


@pytest.mark.parametrize(
    "other",
    [
        tiny_run(seed=2),
        tiny_run(lr=0.02),
        tiny_run("tagc-10x"),
        tiny_run(stage="real"),
        tiny_run(link="50mbit"),
        tiny_run(setting=replace(TINY, steps=9)),
        tiny_run(setting=replace(TINY, nodes=4)),
        tiny_run(setting=replace(TINY, dtype="fp32")),
        tiny_run(setting=replace(TINY, layout="hsdp")),
        replace(tiny_run(), text="other"),
        replace(tiny_run(), versions=(("isthmus", "0"),)),
        replace(tiny_run(), options=(*tiny_run().options, ("bits", 2))),
    ],
)
def test_other_runs_have_other_keys(tmp_path, other):
    with ResultsFile(tmp_path / "results.jsonl") as results:
        results.append(tiny_run(), fake_result())
        assert results.result(other) is None


def test_a_line_that_was_cut_off_is_ignored(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as results:
        results.append(tiny_run(seed=1), fake_result())
        results.append(tiny_run(seed=2), fake_result())
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert len(read_results(path).records) == 1
    with ResultsFile(path) as results:
        assert results.result(tiny_run(seed=2)) is None
        results.append(tiny_run(seed=2), fake_result())
    assert path.read_bytes() == whole


def test_a_file_that_holds_something_else_is_left_alone(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"run": {}}\nmore')
    with pytest.raises(ValueError, match=r"results.jsonl, line 1: not a result of this benchmark"):
        ResultsFile(path)
    assert path.read_text() == '{"run": {}}\nmore'


def test_one_process_at_a_time_writes(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path), pytest.raises(ValueError, match="another process is writing to it"):
        ResultsFile(path)
    with ResultsFile(path):
        pass


# Reports.


def some_results():
    """Gaps of tagc-2x of 1% and 3%, seeds 1 and 2, at the baseline's best rate; 0% and 0% at half of it."""
    results = Results()
    for seed, base, ours in ((1, 2.0, 2.02), (2, 4.0, 4.12)):
        results._add({"run": tiny_run(seed=seed).as_json(), "result": fake_result(base, 8 * 100 * 4)})
        results._add({"run": tiny_run("tagc-2x", seed=seed).as_json(), "result": fake_result(ours, 8 * 100)})
        slower = {"lr": 0.005, "seed": seed}
        results._add({"run": tiny_run(**slower).as_json(), "result": fake_result(base + 1)})
        results._add({"run": tiny_run("tagc-2x", **slower).as_json(), "result": fake_result(base + 1, 8 * 100)})
    return results


def test_gaps_are_those_of_pairs():
    (comparison,), left_out = summarise(some_results())
    assert left_out == 0
    assert list(comparison.baselines) == [0.01, 0.005]
    summary = comparison.arms["tagc-2x"][0.01]
    assert summary.gap is not None
    assert summary.gap.mean == pytest.approx(0.02)
    # Standard deviation 0.01414, two values: 12.706 * 0.01.
    assert summary.gap.half_width == pytest.approx(0.12706, abs=1e-5)
    assert summary.crossing_bits == 8
    assert comparison.arms[BASELINE][0.01].crossing_bits == 32
    assert summary.has_settled
    assert comparison.arms["tagc-2x"][0.005].gap.half_width == 0
    assert cheapest_within(comparison, 0.01) is None  # not at both learning rates
    assert cheapest_within(comparison, 0.15).arm == "tagc-2x"


def test_bits_are_those_of_an_element_that_crosses():
    """Of 4 nodes each sends three quarters of 100 elements in each of 8 steps."""
    setting = replace(TINY, nodes=4)
    runs = Results()
    runs._add({"run": tiny_run(setting=setting).as_json(), "result": fake_result(sent_bytes=4 * 75 * 8 * 2)})
    (comparison,), _ = summarise(runs)
    assert comparison.arms[BASELINE][0.01].crossing_bits == 16


def test_every_table_has_the_floor_that_was_screened(tmp_path):
    results = some_results()
    other = replace(TINY, nodes=4)
    for run, loss in (
        (tiny_run(FLOOR), 3.0),
        (tiny_run(stage="real"), 2.0),
        (tiny_run("tagc-2x", stage="real"), 2.0),
        (tiny_run(setting=other), 2.0),
        (tiny_run("tagc-2x", setting=other), 2.0),
    ):
        results._add({"run": run.as_json(), "result": fake_result(loss)})
    screened, real, not_run = summarise(results)[0]
    assert screened.floor[0.01].gap.mean == real.floor[0.01].gap.mean == pytest.approx(0.5)
    assert not not_run.floor
    assert all(FLOOR not in comparison.arms for comparison in (screened, real, not_run))
    text = write_report(results, tmp_path).read_text()
    assert text.count(f"| `{FLOOR}` | 0.00 | +50.00% |") == 2
    assert text.count(f"| `{FLOOR}` | not run |") == 1


def test_a_gap_that_still_grows_has_not_settled():
    results = some_results()
    for record in results.records:
        if record["run"]["arm"] == "tagc-2x":
            record["result"]["validated"][2]["loss"] *= 0.99
    (comparison,), _ = summarise(results)
    assert not comparison.arms["tagc-2x"][0.01].has_settled


def test_runs_without_a_pair_are_left_out():
    results = some_results()
    results._add({"run": tiny_run("tagc-4x", seed=3).as_json(), "result": fake_result()})
    stale = replace(tiny_run("tagc-2x"), options=(("codec", "tagc"),))
    results._add({"run": stale.as_json(), "result": fake_result()})
    (comparison,), left_out = summarise(results)
    assert left_out == 2
    assert "tagc-4x" not in comparison.arms


def test_results_with_options_that_are_gone_count_where_these_had_todays_value():
    results = Results()
    results._add({"run": tiny_run().as_json(), "result": fake_result()})
    today = tiny_run("quant-4")
    gone = {"rotate": True, "rounding": "nearest", "group_elements": 128, "scale_type": "bf16"}
    for arm, scale, loss in (("quant-4", "least_error", 2.5), ("quant-4-unbiased", "unbiased", 2.02)):
        options = (*today.options, *gone.items(), ("scale", scale))
        results._add({"run": replace(today, arm=arm, options=options).as_json(), "result": fake_result(loss)})
    (comparison,), left_out = summarise(results)
    assert left_out == 1
    gap = comparison.arms["quant-4"][0.01].gap
    assert (gap.num_values, gap.mean) == (1, pytest.approx(0.01))


def test_a_seed_that_diverged_leaves_no_gap():
    results = some_results()
    results.records[1]["result"] |= {"val_loss": None, "validated": []}
    (comparison,), _ = summarise(results)
    summary = comparison.arms["tagc-2x"][0.01]
    assert (summary.gap, summary.num_diverged) == (None, 1)


def test_the_report_keeps_the_text_around_it(tmp_path):
    results = some_results()
    real = [tiny_run(arm, stage="real") for arm in (BASELINE, "tagc-2x")]
    for each in real:
        results._add({"run": each.as_json(), "result": fake_result()})
        timed = {"median_step_s": 0.5, "step_s": [0.5], "link_bytes_per_step": 1.0}
        results._add({"run": replace(each, stage="timed", link="50mbit").as_json(), "result": timed})
    path = write_report(results, tmp_path)
    text = path.read_text()
    assert "| `tagc-2x` | 8.00 | +2.00% ± 12.71 | +0.00% ± 0.00 |" in text
    assert "| `tagc-2x` | 0.500 |" in text
    figures = sorted(figure.name for figure in (tmp_path / "figures").iterdir())
    assert [name.split("steps_")[1] for name in figures] == ["bytes.png", "gap.png", "time.png", "bytes.png", "gap.png"]
    assert all(f"(figures/{name})" in text for name in figures)
    path.write_text(text.replace("# Convergence", "# Mine").rstrip() + "\n\nMy words.\n")
    assert write_report(results, tmp_path).read_text() == path.read_text()
    assert path.read_text().startswith("# Mine")
    assert path.read_text().endswith("\n\nMy words.\n")


def test_without_results_there_is_no_report(tmp_path):
    baseline = Results()
    baseline._add({"run": tiny_run().as_json(), "result": fake_result()})
    for results in (Results(), baseline):
        with pytest.raises(ValueError, match="nothing to report"):
            write_report(results, tmp_path)
    assert not list(tmp_path.iterdir())


NOT_MEASURED = {"coded_elements": 100, "relative_squared_error": None}


def test_results_of_ranks_are_merged():
    answer = {
        "losses": [4.0] * TINY.steps,
        "validated": [
            {"step": step, "total": 6.0, "count": 2, "sent_bytes": 10} for step in validated_steps(TINY.steps)
        ],
        "sent_bytes": 40,
        "num_parameters": 5,
        "num_clipped": 4,
        "units": [{"coded_elements": 100, "relative_squared_error": 0.25}],
        "compressed_calls": 1,
        "exact_calls": {},
    }
    other = answer | {
        "losses": [2.0] * TINY.steps,
        "validated": [point | {"total": 2.0, "count": 2} for point in answer["validated"]],
        "units": [{"coded_elements": 300, "relative_squared_error": 0.5}, NOT_MEASURED],
    }
    result = merged(tiny_run(stage="real"), [answer, other])
    assert result["train_loss"] == [3.0] * 8
    assert result["val_loss"] == 2.0
    assert (result["sent_bytes"], result["validated"][0]["sent_bytes"]) == (80, 20)
    assert result["clipped_share"] == 0.5
    assert result["relative_error"] == 0.4375
    cut = merged(tiny_run(stage="real"), [each | {"losses": [1.0] * 5} for each in (answer, other)])
    assert cut["val_loss"] is None
