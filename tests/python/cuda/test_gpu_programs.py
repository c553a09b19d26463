"""What tests/gpu has for machines with a GPU, on the fake one: the run and its report, a world, counts of launches."""

import json
from pathlib import Path

import pytest

from gpu.counts.chain import CODECS, MACHINES, PLAIN, Chain, count_chains
from gpu.harness import build, main
from gpu.harness.records import FAILED, NOT_RUN, OK, Check
from gpu.harness.report import Report
from gpu.harness.steps import Outcome, Step, judge_end
from gpu.worlds.launch import launch
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


@cuda_worlds.on_fake_gpu
@pytest.mark.parametrize(("names", "short"), [(("collectives", "profile"), True), (("training",), False)])
def test_worlds(names: tuple[str, ...], short: bool) -> None:
    """Those that a run starts, but for that of graphs: the fake GPU captures none."""
    assert launch(names, short=short, fake=True) == 0


MOST_LAUNCHES = {PLAIN: 1, "quant": 7, "none": 7, "tagc": 17}


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
