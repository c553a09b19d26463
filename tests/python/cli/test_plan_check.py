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
    path = tmp_path / "report.json"
    path.write_text(json.dumps(made_report()))
    code, out = run("--check", path)
    assert code == 0
    assert out.count("equal") == 3
    assert out.count("+1.0%") == 2
    assert [each["holds"] for each in report("--check", path)] == [True, True]


def spoil_payload(step):
    step["payload_bytes"] = step["payload_bytes"] | {"reduce_scatter": step["payload_bytes"]["reduce_scatter"] + 1}


def spoil_links(step):
    step["audited_link_bytes"]["all_gather"] *= 1.1


def spoil_collectives(step):
    step["collectives"][0]["num_elements"] += 1


@pytest.mark.parametrize("spoil", [spoil_payload, spoil_links, spoil_collectives])
def test_a_single_byte_a_link_and_a_collective_too_many_are_found(spoil, tmp_path):
    spoiled = made_report()
    spoil(spoiled["arms"]["tagc"]["steps"][1])
    assert [check.holds for check in check_report(spoiled)] == [True, False]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(spoiled))
    assert run("--check", path)[0] == 1


def spoil_arguments(report):
    del report["arguments"]


def spoil_options(report):
    del report["arms"]["tagc"]["options"]


def spoil_kind(report):
    del report["arms"]["tagc"]["steps"][0]["kind"]


def spoil_calls(report):
    del report["arms"]["tagc"]["steps"][1]["collectives"][0]["kind"]


def spoil_arms(report):
    report["arms"] = 3


def spoil_names(report):
    report["arms"] = {"nothing known": report["arms"]["tagc"]}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_arguments, "not a report of `isthmus bench training`: KeyError: 'arguments'"),
        (spoil_options, "training`: KeyError: 'options'"),
        (spoil_kind, "training`: KeyError: 'kind'"),
        (spoil_calls, "training`: KeyError: 'kind'"),
        (spoil_arms, "'int' object has no attribute 'items'"),
        (spoil_names, "no arm of it is a strategy that can be planned"),
    ],
)
def test_a_file_that_is_no_report_is_one_message(spoil, text, tmp_path):
    spoiled = made_report()
    spoil(spoiled)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(spoiled))
    code, out = run("--check", path)
    assert code == 2
    assert text in out


def test_a_report_without_counters_is_checked_as_far_as_it_goes():
    bare = made_report()
    for arm in bare["arms"].values():
        for name in ("collectives", "audited_link_bytes"):
            del arm["steps"][1][name]
    fsdp, tagc = check_report(bare)
    assert (fsdp.collectives_equal, fsdp.payload_equal, fsdp.link_over_expected, fsdp.holds) == (
        None,
        None,
        None,
        True,
    )
    assert tagc.payload_equal is True


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON"),
        ("[]", "not a report of `isthmus bench training`"),
        ("{}", "not a report of `isthmus bench training`: KeyError: 'arguments'"),
        ('{"arguments": {"speed": 1}, "arms": {}}', "not a report of `isthmus bench training`: TypeError"),
        ('{"arguments": {"nodes": 99}, "arms": {}}', "nodes 99: expected 2 to 8"),
    ],
)
def test_a_file_that_is_no_report_is_refused(content, message, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(content)
    code, out = run("--check", path)
    assert code == 2
    assert message in out


def test_an_arm_without_audited_steps_is_refused():
    bare = made_report()
    bare["arms"]["fsdp"]["steps"].pop()
    with pytest.raises(ValueError, match="arm 'fsdp' has no audited step"):
        check_report(bare)
