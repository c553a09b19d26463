"""What tests/gpu/run says of its steps: a report is believed as it stands, and nobody is there to ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu.harness import main, pack
from gpu.harness.build import Places
from gpu.harness.plan import steps
from gpu.harness.records import FAILED, NOT_RUN, OK, Check
from gpu.harness.report import Report
from gpu.harness.steps import Ending, Outcome, Step
from gpu.worlds import killed

STEPS = [Step(name, f"what {name} does", (), 10) for name in ("codecs", "racecheck", "large")]


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((OK, OK, OK), "passed"),
        ((OK, NOT_RUN, OK), "NOT RUN: racecheck"),
        ((OK, OK), "NOT RUN: large"),  # never reached
        ((OK, NOT_RUN), "NOT RUN: racecheck, large"),
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


def test_what_was_not_fit_or_was_not_asked_for_is_no_step() -> None:
    report = Report({"name": "H200"}, {}, ["codecs"])
    unfit = Step("prebuilt", "what was built elsewhere fits", (), 0)
    report.outcomes += [Outcome(unfit, NOT_RUN, "torch differs"), Outcome(STEPS[0], OK)]
    assert report.verdict == "passed"


def test_consoles_are_kept_of_what_failed_alone() -> None:
    for result, kept in ((OK, []), (FAILED, ["a line"])):
        assert Outcome(STEPS[0], result, ending=Ending(tail=["a line"])).as_json()["tail"] == kept


def test_the_exit_status_says_that_steps_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_status(result: str) -> int:
        places = ["--output", str(tmp_path), "--build-dir", str(tmp_path)]
        run = main.Run(main.parse(["--device", "fake", "--only", "codecs", *places]))
        run.report.outcomes.append(Outcome(STEPS[0], result))
        monkeypatch.setattr(run, "_build", lambda: False)
        return run.everything()

    monkeypatch.setattr(main.machine, "ask_torch", lambda env: {})
    monkeypatch.setattr(main.machine, "versions", lambda said, env: {})
    assert [exit_status(result) for result in (OK, FAILED, NOT_RUN)] == [0, 1, main.INCOMPLETE]


def test_a_world_that_starts_once_does_several_steps() -> None:
    command = {step.name: step.command for step in steps(Places(Path()))}
    assert command["collectives"][-3:] == ("collectives", "capture", "profile")
    names = list(command)
    assert names.index("link") == names.index("training") + 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("reduce-scatter #6 failed on rank 0 in phase inter exchange: inter tier\nsilent: rank 3", ""),
        ("isthmus: rank 3 is silent", ""),
        ("packet with magic 1092911300 where 1296585545 is expected\nsilent: rank 3", "the error does not begin"),
        ("inter tier: packet with magic 1092911300\nsilent: rank 3", "the error begins with a packet"),
        ("inter tier: failed", "the error does not name the rank"),
    ],
)
def test_which_error_of_a_killed_rank_is_right(text: str, wrong: str) -> None:
    assert killed.why_wrong(text).startswith(wrong)
    assert bool(killed.why_wrong(text)) == bool(wrong)


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("ip"), reason="ip is not installed")
def test_tools_for_links_are_carried_with_their_libraries(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    pack.pack_tools(programs)
    for name in pack.TOOLS:
        asked = subprocess.run([programs / name, "-V"], capture_output=True, text=True, check=True)
        assert name in asked.stdout
        libraries = subprocess.run(
            ["ldd", programs / "tools" / name],
            env={"LD_LIBRARY_PATH": str(programs / "tools"), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        from_elsewhere = [line for line in libraries.splitlines() if "=> /" in line and str(tmp_path) not in line]
        assert all("libc.so" in line or "libm.so" in line for line in from_elsewhere), from_elsewhere


def test_a_benchmark_that_is_not_as_predicted_fails() -> None:
    from gpu.link import check_arm

    check = {"collectives_equal": True, "payload_equal": None, "holds": True}
    arm = {
        "by_link": {"10gbit": {"median_step_s": 0.1}},
        "link_bytes_per_step": 2e6,
        "gpu_bytes": 1 << 30,
        "val_loss": 2.5,
        "check": check,
    }
    figures = {"10gbit, ms": 100.0, "MB": 2.0, "GiB a rank": 1.0, "validation loss": 2.5}
    assert check_arm("quant", arm, "", is_fake=False) == Check("quant", OK, figures=figures)
    assert check_arm("quant", arm, "no link", is_fake=False).result == NOT_RUN
    check["holds"] = False  # bytes on the links
    assert check_arm("quant", arm, "", is_fake=False).result == FAILED
    assert check_arm("quant", arm, "", is_fake=True).result == OK
    check["payload_equal"] = False
    assert check_arm("quant", arm, "", is_fake=True).result == FAILED
