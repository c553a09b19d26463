"""The runner of tests/gpu: what it makes of programs that fail, crash, hang or say nothing, and its report."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpu.harness import main, sanitizer
from gpu.harness.build import Places, environment, install_command
from gpu.harness.execute import Ending, execute
from gpu.harness.perf import check_of
from gpu.harness.plan import steps
from gpu.harness.records import FAILED, NOT_RUN, OK, Check, parse
from gpu.harness.report import Report
from gpu.harness.steps import Step, Verdict, judge_checks, judge_end
from gpu.harness.versions import slug
from support.limits import HANG_S, scaled

GOOD = Check("sums", OK, 0.5, figures={"GB/s": 1234.5678})


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", text)


def say(*checks: Check) -> str:
    return "".join(f"print({check.line()!r}, flush=True);" for check in checks)


def run(text: str, folder: Path, limit_s: float = HANG_S) -> Ending:
    return execute(program(text), env=os.environ, cwd=folder, limit_s=limit_s, log=folder / "log")


def test_records_are_read_back() -> None:
    assert parse(GOOD.line()) == GOOD
    assert parse("a line of a program") is None
    broken = parse('{"check": "sums", "result": "ok"')
    assert broken is not None and broken.result == FAILED
    unknown = parse('{"check": "sums", "result": "fine"}')
    assert unknown is not None and unknown.result == FAILED


@pytest.mark.processes
def test_a_program_that_passes(tmp_path: Path) -> None:
    ending = run(say(GOOD) + "print('done')", tmp_path)
    assert (ending.exit_code, ending.checks, ending.tail) == (0, [GOOD], ["done"])
    assert judge_checks(ending) == Verdict(OK)
    assert "done" in (tmp_path / "log").read_text()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "told of no check"),
        (say(GOOD) + "raise SystemExit(3)", "exit status 3"),
        (say(GOOD) + "import os; os.abort()", "ended by SIGABRT"),
        (say(GOOD, Check("more", FAILED)), "1 of 2 checks failed, first: more"),
    ],
)
def test_a_program_that_fails(text: str, reason: str, tmp_path: Path) -> None:
    assert judge_checks(run(text, tmp_path)) == Verdict(FAILED, reason)


@pytest.mark.processes
def test_a_missing_program(tmp_path: Path) -> None:
    ending = execute(("/nowhere/to/be/found",), env={}, cwd=tmp_path, limit_s=5, log=tmp_path / "log")
    assert judge_end(ending) == Verdict(FAILED, "/nowhere/to/be/found: No such file or directory")


@pytest.mark.processes
def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    text = say(GOOD) + f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])"
    ending = run(text, tmp_path, limit_s=scaled(1.5))
    assert judge_checks(ending) == Verdict(FAILED, "did not end within its time limit")
    assert ending.checks == [GOOD], "what it said before is kept"
    deadline = time.monotonic() + HANG_S
    while is_alive(int(pid_file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(pid_file.read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_signal_without_a_name() -> None:
    assert judge_end(Ending(exit_code=-40)) == Verdict(FAILED, "ended by signal 40")


def test_a_program_that_cannot_check_anything_here() -> None:
    ending = Ending(exit_code=0, checks=[Check("large", NOT_RUN, detail="too little memory")])
    assert judge_checks(ending) == Verdict(NOT_RUN, "too little memory")
    ending.checks.append(GOOD)
    assert judge_checks(ending) == Verdict(OK)


@pytest.mark.parametrize(
    ("tail", "exit_code", "result"),
    [
        (["========= ERROR SUMMARY: 0 errors"], 0, OK),
        (["========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"], 0, OK),
        (["========= ERROR SUMMARY: 2 errors"], 99, FAILED),
        (["========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"], 0, FAILED),
        (["========= Error: Device not supported"], 1, NOT_RUN),
        (["nothing of it"], 0, FAILED),
        (["========= ERROR SUMMARY: 0 errors"], 1, FAILED),
    ],
)
def test_results_of_the_sanitizer(tail: list[str], exit_code: int, result: str) -> None:
    assert sanitizer.judge(Ending(exit_code=exit_code, tail=tail, checks=[GOOD])).result == result


def test_rows_of_isthmus_perf() -> None:
    row = {"operation": "all_reduce", "dtype": "float32", "codec": "none", "bytes": 64, "time_s": 1e-3}
    row |= {"inter_bytes_per_node": 32, "num_wrong": 0}
    assert check_of(row).result == OK
    assert check_of(row | {"num_wrong": None}).result == OK
    assert check_of(row | {"num_wrong": 3}).result == FAILED


class Machine:
    """The runner on a made-up machine, with made-up steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, said: dict[str, Any], *made_up: Step) -> None:
        monkeypatch.setattr(main.versions, "ask_torch", lambda env: said)
        monkeypatch.setattr(main.versions, "collect", lambda *about: {"torch": "2.11", "driver": None})
        built = Step("build", "nothing", program("pass"), 20, judge_end)
        monkeypatch.setattr(main, "build_steps", lambda install, limit_s: [built])
        monkeypatch.setattr(main, "steps", lambda places: list(made_up))
        monkeypatch.setattr(main, "LEAST_LIMIT_S", 0.5)
        self.folder = folder

    def run(self, *arguments: str) -> int:
        return main.main(["--output", str(self.folder), "--build-dir", str(self.folder / "build"), *arguments])

    def report(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.folder / "report-nvidia-h200.json").read_text())
        return values


H200 = {"available": True, "gpu": {"name": "NVIDIA H200", "capability": "9.0"}}


@pytest.mark.processes
def test_every_step_runs_even_if_others_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_up = [
        Step("crash", "ends by a signal", program(say(GOOD) + "import os; os.abort()"), HANG_S),
        Step("hang", "does not end", program("import time; time.sleep(1000)"), 1),
        Step("none", "cannot run", program(""), HANG_S, missing="no such library"),
        Step("good", "passes", program(say(GOOD)), HANG_S),
    ]
    machine = Machine(monkeypatch, tmp_path, H200, *made_up)
    assert machine.run() == 1
    report = machine.report()
    assert [step["result"] for step in report["steps"]] == [OK, FAILED, FAILED, NOT_RUN, OK]
    assert not report["passed"]
    assert report["steps"][1]["checks"] == [vars(GOOD)]
    text = (tmp_path / "report-nvidia-h200.md").read_text()
    assert "| crash | failed: ended by SIGABRT | 1 of 1 |" in text
    assert "| sums | 1235 |" in text
    assert machine.run("--only", "good", "--only", "none") == 0
    assert [step["name"] for step in machine.report()["steps"]] == ["build", "none", "good"]


@pytest.mark.processes
def test_time_for_all_steps_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, H200, Step("late", "comes too late", program(say(GOOD)), HANG_S))
    assert machine.run("--time-limit", "0.1") == 1
    assert machine.report()["steps"][-1]["reason"] == "not begun: the time for all steps was up"


@pytest.mark.processes
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(monkeypatch, tmp_path, {"available": False}, Step("good", "passes", program(say(GOOD)), HANG_S))
    assert machine.run() == 77
    assert machine.run("--build-only") == 0
    assert "there is no GPU here" in capsys.readouterr().out
    assert not list(tmp_path.glob("report-*")), "no report of a GPU is written"


def test_a_report_shows_what_it_lacks() -> None:
    report = Report(gpu={}, versions={}, planned=["build", "codecs"])
    assert not report.passed
    assert "not reached: build, codecs" in report.text()


def test_the_steps_and_the_build_are_sound(tmp_path: Path) -> None:
    planned = steps(Places(tmp_path))
    names = [step.name for step in planned]
    assert len(set(names)) == len(names)
    assert all(0 < step.limit_s <= 200 for step in planned)
    command = install_command(Places(tmp_path), "90", "")
    assert {"--no-build-isolation", "--no-deps", "--no-index"} <= set(command)
    env = environment(Places(tmp_path), {"ISTHMUS_CODEC": "none", "PATH": "/bin"})
    assert "ISTHMUS_CODEC" not in env
    assert env["PYTHONPATH"].split(":")[0] == str(tmp_path / "site")


def test_names_of_gpus_become_file_names() -> None:
    assert slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert slug("") == "unknown"
