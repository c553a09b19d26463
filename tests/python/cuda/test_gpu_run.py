"""The runner of tests/gpu: what it makes of programs that fail, crash, hang or say nothing, and its report."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu.harness import archive, main, pack, prebuilt, sanitizer, shared_gpu
from gpu.harness.build import Places, environment, install_command
from gpu.harness.execute import Ending, execute
from gpu.harness.plan import steps
from gpu.harness.records import FAILED, NOT_RUN, OK, Check, parse
from gpu.harness.report import Report
from gpu.harness.steps import Step, Verdict, judge_checks, judge_end
from gpu.harness.versions import slug
from support.limits import HANG_S, scaled
from support.places import ROOT

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


class Machine:
    """The runner on a made-up machine, with made-up steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, said: dict[str, Any], *made_up: Step) -> None:
        monkeypatch.setattr(main.versions, "ask_torch", lambda env: said)
        monkeypatch.setattr(main.versions, "collect", lambda *about: {"torch": "2.11", "driver": None})
        built = Step("build", "nothing", program("pass"), 20, judge_end)
        monkeypatch.setattr(main, "build_step", lambda install, limit_s: built)
        monkeypatch.setattr(main, "import_step", lambda: replace(built, name="import"))
        monkeypatch.setattr(main, "steps", lambda places, device="cuda": list(made_up))
        monkeypatch.setattr(main, "RESERVE_S", 0)
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
    assert [step["result"] for step in report["steps"]] == [OK, OK, FAILED, FAILED, NOT_RUN, OK]
    assert not report["passed"]
    assert report["steps"][2]["checks"] == [vars(GOOD)]
    text = (tmp_path / "report-nvidia-h200.md").read_text()
    assert "| crash | failed: ended by SIGABRT | 1 of 1 |" in text
    assert "| sums | 1235 |" in text
    assert machine.run("--only", "good", "--only", "none") == 0
    assert [step["name"] for step in machine.report()["steps"]] == ["build", "import", "none", "good"]


@pytest.mark.processes
def test_a_step_that_cannot_have_its_least_time_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    late = Step("late", "needs more", program(say(GOOD)), 10 * HANG_S, least_s=2 * HANG_S)
    machine = Machine(monkeypatch, tmp_path, H200, late, Step("good", "passes", program(say(GOOD)), HANG_S))
    assert machine.run("--time-limit", str(HANG_S)) == 0
    results = {step["name"]: (step["result"], step["reason"]) for step in machine.report()["steps"]}
    assert results["late"] == (NOT_RUN, main.TIME_WAS_UP)
    assert results["good"] == (OK, "")


@pytest.mark.processes
@pytest.mark.parametrize(("said", "result"), [(say(GOOD), NOT_RUN), (say(Check("more", FAILED)), FAILED)])
def test_a_step_that_is_cut_by_the_end_of_all_time_failed_only_if_a_check_did(
    said: str, result: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cut = Step("cut", "does not end", program(said + "import time; time.sleep(1000)"), HANG_S, least_s=0)
    machine = Machine(monkeypatch, tmp_path, H200, cut)
    machine.run("--skip-build", "--time-limit", str(scaled(3)))
    assert [(step["name"], step["result"]) for step in machine.report()["steps"]] == [("cut", result)]


@pytest.mark.processes
def test_each_result_is_written_before_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    look = "import json, sys, tarfile;"
    look += f"report = json.load(open({str(tmp_path / 'report-nvidia-h200.json')!r}));"
    look += "names = [step['name'] for step in report['steps']];"
    look += f"logs = tarfile.open({str(tmp_path / 'logs.tar.gz')!r}).getnames();"
    look += "assert names == ['build', 'import', 'good'] and 'good.log' in logs, (names, logs);"
    steps = [
        Step("good", "passes", program(say(GOOD)), HANG_S),
        Step("look", "reads the report", program(look + say(GOOD)), HANG_S),
    ]
    machine = Machine(monkeypatch, tmp_path, H200, *steps)
    assert machine.run("--commit", "c0ffee") == 0, (tmp_path / "build/logs/look.log").read_text()
    assert machine.report()["versions"]["commit"] == "c0ffee"


@pytest.mark.parametrize("version", [(2, 28, 9), (2, 29, 1), (2, 30, 0), (2, 30, 7), (3, 0, 0)])
def test_ranks_share_a_gpu_as_their_nccl_allows(version: tuple[int, ...]) -> None:
    """As hosts of their own before NCCL 2.30, where no other way leads to one GPU; asked for from then on."""
    ranks = [shared_gpu.of_rank(rank, version) for rank in range(4)]
    hosts = {rank.get("NCCL_HOSTID") for rank in ranks}
    assert hosts == ({None} if version >= (2, 30) else {f"isthmus-{rank}" for rank in range(4)})
    assert all(("NCCL_MULTI_RANK_GPU_ENABLE" in rank) is (version >= (2, 30)) for rank in ranks)


SAID = {"torch": "2.11.0+cu130", "cuda_of_torch": "13.0", "gpu": {"capability": "9.0"}}


def manifest(folder: Path, **changes: Any) -> Path:
    fits = {
        "commit": "c0ffee",
        "changed_files": 0,
        "sources": prebuilt.digest(ROOT),
        "python": prebuilt.python_version(),
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "architectures": ["90"],
    }
    prebuilt.Manifest(**{**fits, **changes}).write(folder)
    return folder


def test_prebuilt_programs_that_fit(tmp_path: Path) -> None:
    assert prebuilt.why_unfit(manifest(tmp_path), ROOT, SAID) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sources", "of another day"),
        ("python", "3.9"),
        ("torch", "2.12.0"),
        ("cuda", "12.8"),
        ("architectures", ["80", "100"]),
    ],
)
def test_prebuilt_programs_that_do_not_fit_say_so(field: str, value: Any, tmp_path: Path) -> None:
    reason = prebuilt.why_unfit(manifest(tmp_path, **{field: value}), ROOT, SAID)
    assert str(value if field != "architectures" else "80, 100") in reason, reason


def test_a_folder_without_prebuilt_programs(tmp_path: Path) -> None:
    assert "manifest.json" in prebuilt.why_unfit(tmp_path, ROOT, SAID)


def test_sources_are_told_apart(tmp_path: Path) -> None:
    source = tmp_path / "src/a.cpp"
    source.parent.mkdir()
    source.write_text("int a;")
    before = prebuilt.digest(tmp_path)
    source.write_text("int b;")
    assert prebuilt.digest(tmp_path) != before


@pytest.mark.processes
def test_what_does_not_fit_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, SAID | H200, Step("good", "passes", program(say(GOOD)), HANG_S))
    unfit = manifest(tmp_path, torch="2.12.0")
    assert machine.run("--prebuilt", str(unfit)) == 0
    steps = machine.report()["steps"]
    assert [step["name"] for step in steps] == ["prebuilt", "build", "import", "good"]
    assert "2.12.0" in steps[0]["reason"]


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(bytes(2 * pack.MIB))
    assert pack.report_size(tmp_path, 3) == 0
    assert pack.report_size(tmp_path, 1) == 1


def test_long_logs_lose_their_middle() -> None:
    long = b"begin" + bytes(3 * archive.KEPT_BYTES) + b"end"
    kept = archive.shortened(long)
    assert kept.startswith(b"begin") and kept.endswith(b"end") and len(kept) < len(long)
    assert archive.shortened(b"short") == b"short"


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
    command = install_command(Places(tmp_path), "90")
    assert {"--no-build-isolation", "--no-deps", "--no-index"} <= set(command)
    env = environment(Places(tmp_path), {"ISTHMUS_CODEC": "none", "PATH": "/bin"})
    assert "ISTHMUS_CODEC" not in env
    assert env["PYTHONPATH"].split(":")[0] == str(tmp_path / "site")


def test_names_of_gpus_become_file_names() -> None:
    assert slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert slug("") == "unknown"
