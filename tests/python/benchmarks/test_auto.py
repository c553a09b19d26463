"""`isthmus bench auto`: what is compared with what, whose turn it is, and figures. Nothing is trained here."""

from dataclasses import replace

import pytest
from rich.console import Console

import isthmus
from isthmus.benchmarks.auto.arms import AUTO_ARMS, RIVALS
from isthmus.benchmarks.auto.config import AutoConfig, quick
from isthmus.benchmarks.auto.run import figures, print_auto, turns
from isthmus.benchmarks.training.config import TrainingConfig
from python.benchmarks.bench_cli import run

CONFIG = AutoConfig(TrainingConfig(arms=("fsdp",)), arms=("fsdp", "quant4", "auto"), rounds=4)


def test_every_arm_has_options_that_isthmus_takes():
    for options in AUTO_ARMS.values():
        if options is not None:
            isthmus.Options(**options)
    assert {rival for rivals in RIVALS.values() for rival in rivals} <= set(AUTO_ARMS)


def test_auto_is_compared_with_arms_within_its_budget():
    seconds = {"fsdp": [3.0, 1.0, 2.0], "quant4": [1.5], "quant1": [1.0], "auto": [1.8], "auto-any": [1.2]}
    arms = figures(seconds, {"auto": ["x: quant 4 bit"], "auto-any": []})["arms"]
    assert arms["fsdp"]["median_step_s"] == 2.0
    assert arms["fsdp"]["min_step_s"] == 1.0
    assert "over_best" not in arms["quant4"]
    assert arms["auto"]["best_rival"] == "quant4"
    assert arms["auto"]["over_best"] == pytest.approx(1.2)
    assert arms["auto-any"]["best_rival"] == "quant1"
    assert arms["auto-any"]["over_best"] == pytest.approx(1.2)
    assert arms["auto"]["explained"] == ["x: quant 4 bit"]


def test_every_round_begins_with_another_arm():
    assert list(turns(replace(CONFIG, rounds=4))) == [
        *("fsdp", "quant4", "auto"),
        *("quant4", "auto", "fsdp"),
        *("auto", "fsdp", "quant4"),
        *("fsdp", "quant4", "auto"),
    ]
    assert quick(CONFIG).rounds == 1
    assert quick(CONFIG).links == CONFIG.links[:1]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"arms": ("fsdp", "nothing")}, "arm 'nothing': expected some of"),
        ({"arms": ("fsdp", "auto", "auto")}, "arm 'auto' is named twice"),
        ({"arms": ("fsdp", "none")}, "expected one of auto, auto-any"),
        ({"arms": ("auto",)}, "another to compare it with"),
        ({"links": ("50mb",)}, "link rate '50mb'"),
        ({"links": ()}, "no links"),
        ({"rounds": 0}, "rounds 0: expected 1 to 10000"),
        ({"steps": 0}, "steps 0: expected 1 to 10000"),
    ],
)
def test_arguments_are_checked_before_anything_runs(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(CONFIG, **changes)


def test_the_table_says_what_is_within_the_goal():
    measured = figures({"fsdp": [1.0], "quant4": [0.5], "auto": [0.505]}, {"auto": ["blocks.0: quant 4 bit"]})
    slower = figures({"fsdp": [1.0], "quant4": [0.5], "auto": [0.6]}, {"auto": ["blocks.0: none"]})
    report = {"links": {"50mbit": measured, "1gbit": slower}, "arguments": {"arms": CONFIG.arms}}
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    print_auto(report, console)
    text = console.export_text()
    assert "50mbit: auto takes 1.010 of quant4, the fastest that it could have chosen: within 102%" in text
    assert "1gbit: auto takes 1.200 of quant4" in text
    assert "outside 102%" in text
    assert "blocks.0: none" in text


@pytest.mark.processes
def test_a_wrong_argument_is_one_line():
    status, _, err = run("auto", "--arms", "fsdp,none")
    assert status != 0
    assert "expected one of auto, auto-any" in err
    assert "Traceback" not in err
