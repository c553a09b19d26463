"""What tests/gpu/run says of its steps: a report is believed as it stands, and nobody is there to ask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu.harness import main, prebuilt
from gpu.harness.plan import steps
from gpu.harness.records import FAILED, NOT_RUN, OK, Check
from gpu.harness.report import Report
from gpu.harness.steps import Outcome, Step, judge_end
from gpu.link import check_arm
from gpu.worlds import killed
from python.cuda import worlds as cuda_worlds
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
@cuda_worlds.needs_fake_gpu
def test_a_run_on_the_fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step that it can run and one that it cannot; with the module that is built here already."""
    monkeypatch.setattr(main.Run, "_build", lambda run: True)
    monkeypatch.setattr(main, "import_step", lambda: Step("import", "", ("true",), HANG_S, judge_end))
    monkeypatch.setattr(main, "steps", lambda *about: [replace(step, limit_s=HANG_S) for step in steps(*about)])
    arguments = ["--device", "fake", "--only=collectives", "--only=codecs", f"--time-limit={HANG_S}"]
    arguments += [f"--output={tmp_path}", f"--build-dir={tmp_path / 'build'}"]
    assert main.main(arguments) == main.INCOMPLETE, (tmp_path / "report-fake-gpu.md").read_text()
    told = json.loads((tmp_path / "report-fake-gpu.json").read_text())["steps"]
    assert {step["name"]: step["result"] for step in told} == {"import": OK, "codecs": NOT_RUN, "collectives": OK}
    assert len(told[-1]["checks"]) > 20
    assert (tmp_path / "logs.tar.gz").stat().st_size > 1000


def test_what_was_built_for_another_system_is_told(tmp_path: Path) -> None:
    said = {"torch": "2.11.0", "cuda": "13.0", "gpu": {"capability": "9.0"}}
    manifest = {"sources": prebuilt.digest(), "python": prebuilt.python_version(), "torch": "2.11.0", "cuda": "13.0"}
    manifest |= {"architectures": ["90"], "glibc": "2.17"}
    for changes, reason in (
        ({}, ""),
        ({"glibc": "9.9"}, "glibc 9.9 and newer, here 2."),
        ({"torch": "3"}, "torch 3, here"),
    ):
        (tmp_path / prebuilt.MANIFEST).write_text(json.dumps(manifest | changes))
        unfit = prebuilt.why_unfit(tmp_path, said)
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
