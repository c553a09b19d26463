"""Predictions against a made-up report. Real runs are checked by the benchmark's tests."""

import io
from dataclasses import asdict

import pytest
from rich.console import Console

from isthmus.benchmarks.training.check import check_report, predict, print_checks
from isthmus.benchmarks.training.config import TrainingConfig

CONFIG = TrainingConfig(arms=("fsdp", "tagc"), nodes=2, ranks_per_node=2, width=64, num_layers=1, context=16)
OPTIONS = {
    "codec": "tagc",
    "tiers": "two",
    "ratio": 10.0,
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
    return {"arguments": asdict(CONFIG), "arms": arms}


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


def test_a_report_as_predicted_holds():
    checks = check_report(made_report())
    assert [(check.arm, check.holds) for check in checks] == [("fsdp", True), ("tagc", True)]
    assert checks[1].link_over_expected == pytest.approx(0.01)
    out = io.StringIO()
    print_checks(checks, Console(file=out, width=200))
    assert out.getvalue().count("equal") == 3
    assert out.getvalue().count("+1.0%") == 2


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
def test_a_byte_a_link_and_a_collective_too_many_are_found(spoil):
    report = made_report()
    spoil(report)
    assert [check.holds for check in check_report(report)] == [True, False]
