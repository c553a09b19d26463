"""What tests/gpu has for machines with a GPU, on the fake one: the run and its report, a world, counts of launches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu import build
from gpu.counts.chain import CODECS, MACHINES, PLAIN, Chain, count_chains
from gpu.programs import FAILED, NOT_RUN, OK, Check, Ending, judge, parse
from gpu.report import Outcome, Report
from gpu.worlds.launch import launch
from python.cuda import worlds as cuda_worlds
from support.limits import HANG_S

STEPS = ["codecs", "racecheck", "large"]


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
    report = Report({"name": "H200"}, {}, tmp_path, tmp_path, STEPS)
    for name, result in zip(STEPS, results, strict=False):
        report.add(Outcome(name, f"what {name} does", result, "time was up" * (result == NOT_RUN)))
    values, text = (path.read_text() for path in report.write()[:2])
    assert text.splitlines()[0] == f"# Isthmus on H200: {verdict}"
    assert json.loads(values)["passed"] is (verdict == "passed")
    assert report.text().count("not run: time was up") == results.count(NOT_RUN)


GOOGLE_TEST = """Note: Google Test filter = Codecs.*
[ RUN      ] Codecs.quant, 1 elements
[       OK ] Codecs.quant, 1 elements (12 ms)
[ RUN      ] Codecs.none, NaN
unknown file: Failure
C++ exception with description "packets differ at element 3" thrown in the test body.
[  FAILED  ] Codecs.none, NaN (1 ms)
[ RUN      ] Codecs.more
main.cpp:7: Skipped
the device has too little memory
[  SKIPPED ] Codecs.more (0 ms)
[  FAILED  ] Codecs.none, NaN
[ RUN      ] Codecs.last
"""


def test_what_programs_say_of_their_checks() -> None:
    records = [Check("arm", OK, 1, figures={"MB": 2.5}), Check("arm 2", "well")]
    lines = [*GOOGLE_TEST.splitlines(), *(record.line() for record in records)]
    checks = [told for told in parse(lines) if isinstance(told, Check)]
    assert [check.result for check in checks] == [OK, FAILED, NOT_RUN, OK, FAILED, FAILED]
    assert checks[0].check == "Codecs.quant, 1 elements" and checks[0].seconds == 0.012
    assert "packets differ at element 3" in checks[1].detail and "too little memory" in checks[2].detail
    assert checks[3] == records[0] and "not a record" in checks[4].detail
    assert checks[5] == Check("Codecs.last", FAILED, detail="it did not end")


@pytest.mark.parametrize(
    ("ending", "verdict"),
    [
        (Ending(0, False, [Check("a", OK), Check("b", NOT_RUN)], []), (OK, "")),
        (Ending(0, False, [Check("a", NOT_RUN, detail="no memory")], []), (NOT_RUN, "no memory")),
        (Ending(0, False, [], []), (FAILED, "told of no check")),
        (Ending(1, False, [Check("a", FAILED), Check("b", OK)], []), (FAILED, "1 of 2 checks failed, first: a")),
        (Ending(-11, False, [Check("a", OK)], []), (FAILED, "exit status -11")),
        (Ending(-15, True, [Check("a", OK)], []), (FAILED, "did not end within its time limit")),
    ],
)
def test_how_a_program_is_judged(ending: Ending, verdict: tuple[str, str]) -> None:
    assert judge(ending) == verdict
    found = "========= ERROR SUMMARY: 2 errors"
    for lines, sanitized in (
        ([found], (FAILED, "ERROR SUMMARY: 2 errors")),
        (["=== Device not supported"], (NOT_RUN, "compute-sanitizer does not run here: Device not supported")),
        (["========= ERROR SUMMARY: 0 errors"], verdict),
    ):
        assert judge(Ending(ending.exit_code, ending.timed_out, ending.checks, lines), is_sanitized=True) == sanitized


# A machine with a GPU, as far as a run asks; and steps: some that fail, one that hangs, one that lacks a tool, one
# that needs isthmus, which does not load, one that takes more time than is left.
REHEARSAL = """
import sys
from pathlib import Path
from gpu import machine, main

machine.ask_torch = lambda env: {"gpu": {"name": "H200", "capability": "9.0"}}
main.install_command = lambda places, architecture: ["true"]
sys.exit(main.main(sys.argv[2:], Path(sys.argv[1])))
"""
REHEARSED = """
import pytest


@pytest.mark.limit(60)
def test_import(step):
    try:
        step.run("false")
    except BaseException:
        step.steps.loads = False
        raise


@pytest.mark.limit(60)
def test_codecs(step):
    \"\"\"codecs, bit
    for bit\"\"\"
    step.run("echo", '{"check": "one", "result": "ok", "figures": {"GB/s": 1.5}}')


@pytest.mark.limit(0.5, least=0)
def test_large(step):
    step.run("sleep", "1000")


@pytest.mark.limit(60)
def test_racecheck(step):
    pytest.skip("there is no tool")


@pytest.mark.limit(60)
def test_training(step):
    step.python("gpu.worlds", "training")


@pytest.mark.limit(1e9, least=1e9)
def test_order(step):
    step.run("true")
"""


@pytest.mark.processes
def test_a_run_tells_of_each_step(tmp_path: Path) -> None:
    steps = tmp_path / "test_steps.py"
    steps.write_text(REHEARSED)
    arguments = [f"--time-limit={HANG_S}", f"--output={tmp_path / 'out'}", f"--build-dir={tmp_path / 'build'}"]
    done = subprocess.run(
        [sys.executable, "-c", REHEARSAL, steps, *arguments, "--commit=abc"],
        env=build.environment(build.Places(tmp_path)),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "out/report-h200.json").read_text())
    expected = {"build": OK, "import": FAILED, "codecs": OK, "large": FAILED, "racecheck": NOT_RUN, "training": NOT_RUN}
    assert {step["name"]: step["result"] for step in report["steps"]} == {**expected, "order": NOT_RUN}
    reasons = {step["name"]: step["reason"] for step in report["steps"]}
    assert reasons["import"] == "exit status 1" and reasons["large"] == "did not end within its time limit"
    assert reasons["racecheck"] == "there is no tool" and reasons["training"] == "isthmus does not load"
    assert (
        report["steps"][2]["checks"][0]["figures"] == {"GB/s": 1.5}
        and report["steps"][2]["what"] == "codecs, bit for bit"
    )
    assert report["versions"]["commit"] == "abc" and report["not_run"] == ["racecheck", "training", "order"]
    assert (tmp_path / "out/logs.tar.gz").stat().st_size > 100


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


@cuda_worlds.on_fake_gpu
@pytest.mark.parametrize(("names", "short"), [(("collectives", "profile"), True), (("training",), False)])
def test_worlds(names: tuple[str, ...], short: bool) -> None:
    """Those that a run starts, but for that of graphs: the fake GPU captures none."""
    assert launch(names, short=short, fake=True) == 0


MOST_LAUNCHES = {PLAIN: 1, "quant": 9, "none": 9, "tagc": 19}


@pytest.fixture(scope="module", params=MACHINES)
def chains(request: pytest.FixtureRequest) -> dict[str, Chain]:
    return {chain.codec: chain for chain in count_chains(request.param, is_timed=False)}


def ratio(chain: Chain, *, encode: bool) -> float:
    moved = chain.moved_bytes(encode=encode)
    assert moved is not None, f"a pass of {chain.codec} does not say what it moves"
    return moved / chain.compulsory_bytes(encode=encode)


@cuda_worlds.on_fake_gpu
def test_launches_do_not_grow_with_the_nodes(chains: dict[str, Chain]) -> None:
    assert {codec: chain.num_launches for codec, chain in chains.items()} == MOST_LAUNCHES
    assert {chains[codec].nccl_launches for codec in CODECS} == {3}  # foreign pieces, exchange, own piece


@cuda_worlds.on_fake_gpu
def test_nothing_waits_and_nothing_is_allocated(chains: dict[str, Chain]) -> None:
    assert {codec: (chain.synchronizations, chain.allocations) for codec, chain in chains.items()} == {
        codec: (0, 0) for codec in (PLAIN, *CODECS)
    }


@cuda_worlds.on_fake_gpu
def test_each_byte_is_moved_about_once(chains: dict[str, Chain]) -> None:
    assert ratio(chains["none"], encode=True) == pytest.approx(1, abs=0.01)
    assert ratio(chains["none"], encode=False) == pytest.approx(1, abs=0.01)
    assert ratio(chains["quant"], encode=True) < 1.01
    assert ratio(chains["quant"], encode=False) < 1.02
