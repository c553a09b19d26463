"""`isthmus plan --check`: predictions against a report. Real runs are checked by the benchmark's tests."""

import json

import pytest

from isthmus.benchmarks.training.check import check_report, predict
from isthmus.benchmarks.training.config import TrainingConfig
from python.cli.planned import report, run

CONFIG = TrainingConfig(arms=("fsdp", "tagc"), nodes=2, ranks_per_node=2, width=64, num_layers=1, context=16)
OPTIONS = {
    "codec": "tagc",
    "tiers": "two",
    "ratio": 10.0,
    "index_bits": 1,
    "min_elements": 1000,
}


def made_report():
    """A report in which everything is as predicted."""
    arms = {}
    for arm, options in (("fsdp", None), ("tagc", OPTIONS)):
        predicted = predict(CONFIG, arm, options)
        fields = ("kind", "num_ranks", "num_elements", "element_bytes")
        step = {
            "kind": "audited",
            "collectives": [dict(zip(fields, call, strict=True)) for call in predicted.collectives.elements()],
            "audited_link_bytes": {phase: 1.01 * count for phase, count in predicted.bytes_by_phase.items()},
        }
        if options:
            step["payload_bytes"] = predicted.counted_by_phase
        arms[arm] = {"options": options, "steps": [{"kind": "loss"}, step]}
    return {"arguments": CONFIG.as_json(), "arms": arms}


def test_a_prediction_comes_from_the_arguments_alone():
    predicted = predict(CONFIG, "fsdp", None)
    block, root = 12 * 64 * 64 + 4 * 64, 2 * 256 * 64 + 16 * 64 + 2 * 64
    assert predicted.collectives == {
        ("all_gather", 4, root, 2): 1,
        ("all_gather", 4, block, 2): 2,
        ("reduce_scatter", 4, root, 2): 1,
        ("reduce_scatter", 4, block, 2): 1,
    }
    ring = 2 * 3 / 4 * 2  # two edges, three quarters of the tensor, two bytes
    assert predicted.bytes_by_phase == {
        "all_gather": ring * (root + 2 * block),
        "reduce_scatter": 2 * ring * (root + block),
    }
    assert predicted.counted_by_phase == {"all_gather": 0, "reduce_scatter": 0}


def test_a_report_as_predicted_holds(tmp_path):
    checks = check_report(made_report())
    assert [(check.arm, check.holds) for check in checks] == [("fsdp", True), ("tagc", True)]
    assert checks[1].link_over_expected == pytest.approx(0.01)
    path, _ = spoiled(lambda report: None, tmp_path)
    code, out = run("--check", path)
    assert code == 0
    assert out.count("equal") == 3
    assert out.count("+1.0%") == 2
    assert [each["holds"] for each in report("--check", path)] == [True, True]


def spoiled(spoil, tmp_path):
    """The path of a report in which something was changed, and the report."""
    report = made_report()
    spoil(report)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    return path, report


def tagc_step(report):
    return report["arms"]["tagc"]["steps"][1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: tagc_step(report).update(payload_bytes={"all_gather": 0, "reduce_scatter": 1}),
        lambda report: tagc_step(report)["audited_link_bytes"].update(all_gather=10**6),
        lambda report: tagc_step(report)["collectives"][0].update(num_elements=1),
    ],
)
def test_a_byte_a_link_and_a_collective_too_many_are_found(spoil, tmp_path):
    path, report = spoiled(spoil, tmp_path)
    assert [check.holds for check in check_report(report)] == [True, False]
    assert run("--check", path)[0] == 1


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda report: report.clear(), "not a report of `isthmus bench training`: KeyError: 'arguments'"),
        (lambda report: report["arguments"].update(speed=1), "not a report of `isthmus bench training`: TypeError"),
        (lambda report: report["arguments"].update(nodes=99), "nodes 99: expected 2 to 8"),
        (lambda report: report["arms"]["tagc"].pop("options"), "training`: KeyError: 'options'"),
        (lambda report: tagc_step(report)["collectives"][0].pop("kind"), "training`: KeyError: 'kind'"),
        (lambda report: report.update(arms=3), "'int' object has no attribute 'items'"),
        (lambda report: report.update(arms={"unknown": {"options": {}, "steps": []}}), "no arm of it is a strategy"),
        (lambda report: report["arms"]["fsdp"]["steps"].pop(), "arm 'fsdp' has no audited step"),
    ],
)
def test_a_file_that_is_no_report_is_one_message(spoil, text, tmp_path):
    code, out = run("--check", spoiled(spoil, tmp_path)[0])
    assert code == 2
    assert text in out


def test_a_file_that_is_no_json_is_one_message(tmp_path):
    path = tmp_path / "report.json"
    for content, message in (("{", "no JSON"), ("[]", "not a report of `isthmus bench training`")):
        path.write_text(content)
        code, out = run("--check", path)
        assert code == 2 and message in out


def test_a_report_without_counters_is_checked_as_far_as_it_goes():
    bare = made_report()
    for arm in bare["arms"].values():
        for name in ("collectives", "audited_link_bytes"):
            del arm["steps"][1][name]
    fsdp, tagc = check_report(bare)
    assert (fsdp.collectives_equal, fsdp.payload_equal, fsdp.link_over_expected) == (None, None, None)
    assert fsdp.holds
    assert tagc.payload_equal is True
