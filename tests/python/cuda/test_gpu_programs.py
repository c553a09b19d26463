"""What tests/gpu has for machines with a GPU, on the fake one: the run and its report, a world, counts of launches."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu.counts.counted import CODECS, MACHINES, PLAIN, Chain
from gpu.counts.rank import count_chains
from gpu.harness import main
from gpu.harness.plan import steps
from gpu.harness.records import FAILED, NOT_RUN, OK
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


@cuda_worlds.on_fake_gpu
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


@cuda_worlds.on_fake_gpu
def test_training() -> None:
    """Models that train with CUDA tensors."""
    assert launch(("training",), "fake", short=False) == 0


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
