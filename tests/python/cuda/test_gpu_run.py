"""What tests/gpu/run says of its steps: a report is believed as it stands, and nobody is there to ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu.harness import build, main
from gpu.harness.records import FAILED, NOT_RUN, OK, Check
from gpu.harness.report import Report
from gpu.harness.steps import Outcome, Step, judge_end
from gpu.link import check_arm
from gpu.worlds import killed
from support.limits import HANG_S

STEPS = [Step(name, f"what {name} does", (), 10) for name in ("codecs", "racecheck", "large")]


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((OK, OK, OK), "passed"),
        ((OK, NOT_RUN), "NOT RUN: racecheck, large"),  # the last one was never reached
        ((FAILED, NOT_RUN, OK), "FAILED: codecs; NOT RUN: racecheck"),
        ((), "NOT RUN: codecs, racecheck, large"),
    ],
)
def test_what_was_not_run_has_not_passed(results: tuple[str, ...], verdict: str, tmp_path: Path) -> None:
    report = Report({"name": "H200"}, {}, [step.name for step in STEPS])
    report.outcomes += [
        Outcome(step, result, "time was up" * (result == NOT_RUN)) for step, result in zip(STEPS, results, strict=False)
    ]
    values, text = (path.read_text() for path in report.write(tmp_path, "report"))
    assert text.splitlines()[0] == f"# Isthmus on H200: {verdict}"
    assert json.loads(values)["passed"] is (verdict == "passed")
    assert report.text().count("not run: time was up") == results.count(NOT_RUN)


@pytest.mark.processes
def test_a_run_tells_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step that can be run, one that cannot, and one that hangs."""
    chosen = [
        Step("codecs", "", ("echo", Check("one", OK).line()), HANG_S),
        Step("large", "", ("sleep", str(HANG_S)), 0.5, least_s=0),
        Step("racecheck", "", (), HANG_S, missing="there is no tool"),
    ]
    monkeypatch.setattr(main.machine, "ask_torch", lambda env: {"gpu": {"name": "H200"}})
    monkeypatch.setattr(main.Run, "_build", lambda run: True)
    monkeypatch.setattr(main, "import_step", lambda: Step("import", "", ("true",), HANG_S, judge_end))
    monkeypatch.setattr(main, "steps", lambda places: chosen)
    arguments = [f"--time-limit={HANG_S}", f"--output={tmp_path}", f"--build-dir={tmp_path / 'build'}"]
    assert main.main(arguments) == 1
    told = json.loads((tmp_path / "report-h200.json").read_text())["steps"]
    expected = {"import": OK, "codecs": OK, "large": FAILED, "racecheck": NOT_RUN}
    assert {step["name"]: step["result"] for step in told} == expected
    assert (tmp_path / "logs.tar.gz").stat().st_size > 100


def test_what_was_built_for_another_system_is_told(tmp_path: Path) -> None:
    said = {"torch": "2.11.0", "cuda": "13.0", "gpu": {"capability": "9.0"}}
    manifest = {"sources": build.digest(), "python": build.python_version(), "torch": "2.11.0", "cuda": "13.0"}
    manifest |= {"architectures": ["90"], "glibc": "2.17"}
    for changes, reason in (
        ({}, ""),
        ({"glibc": "9.9"}, "glibc 9.9 and newer, here 2."),
        ({"torch": "3"}, "torch 3, here"),
    ):
        (tmp_path / build.MANIFEST).write_text(json.dumps(manifest | changes))
        unfit = build.why_unfit(tmp_path, said)
        assert reason in unfit and bool(reason) == bool(unfit)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("reduce-scatter #6 failed on rank 0 in phase inter exchange: inter tier\nsilent: rank 3", ""),
        ("packet with magic 1092911300 where 1296585545 is expected\nsilent: rank 3", "the error does not begin"),
        ("inter tier: packet with magic 1092911300\nsilent: rank 3", "the error begins with a packet"),
        ("inter tier: failed", "the error does not name the rank"),
    ],
)
def test_which_error_of_a_killed_rank_is_right(text: str, wrong: str) -> None:
    assert killed.why_wrong(text).startswith(wrong)
    assert bool(killed.why_wrong(text)) == bool(wrong)


def test_a_benchmark_that_is_not_as_predicted_fails() -> None:
    check = {"collectives_equal": True, "payload_equal": None, "holds": True}
    arm = {
        "by_link": {"10gbit": {"median_step_s": 0.1}},
        "link_bytes_per_step": 2e6,
        "gpu_bytes": 1 << 30,
        "val_loss": 2.5,
        "check": check,
    }
    figures = {"10gbit, ms": 100.0, "MB": 2.0, "GiB a rank": 1.0, "validation loss": 2.5}
    assert check_arm("quant", arm, "") == Check("quant", OK, figures=figures)
    assert check_arm("quant", arm, "no link").result == NOT_RUN
    check["holds"] = False
    assert check_arm("quant", arm, "").result == FAILED
