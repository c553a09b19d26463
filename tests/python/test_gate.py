"""The gate does not pass where a stage fails, does not run, or has tests that skip and may not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.limits import HANG_S
from support.places import ROOT, TESTS
from support.skips import allowed_skips

STAND_INS = {
    "make": 'echo "$GATE_STAGE: $*" >> calls; env >> environments; [ "$GATE_STAGE" != "$(cat failing)" ]',
    "readelf": "echo '(NEEDED) Shared library: [libc10.so]'",
    ".venv/bin/isthmus": "true",
    ".venv/bin/python": f'[ "$1" = tools/check_demo.py ] || exec {sys.executable} "$@"',
    ".venv-oldest/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc": "cat > /dev/null",
    "tools/check_cuda_build": "true",
    "tools/check_aarch64": "true",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, script in STAND_INS.items():
        path = tmp_path / name if "/" in name else tmp_path / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    module = tmp_path / "build/native/.venv-oldest/src/torch/_C.cpython-311.so"
    module.parent.mkdir(parents=True)
    module.touch()
    support = [f"tests/support/{name}.py" for name in ("skips", "limits", "__init__")]
    for name in (".ci/run", "tests/allowed_skips.toml", *support):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_gate(tree: Path, *stages: str, failing: str = "none", **variables: str) -> tuple[int, str]:
    (tree / "failing").write_text(failing)
    environment = {**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}", **variables}
    command = [tree / ".ci/run", *stages]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    return result.returncode, result.stdout + result.stderr


# What must not reach the stages from outside, as it would narrow what runs.
NARROWING = ("T", "CTEST_ARGS", "MAKEFLAGS", "PYTEST_ADDOPTS", "SANITIZED_TESTS", "FUZZ_SECONDS", "RECORD", "VENV")


@pytest.mark.processes
def test_all_stages_pass_and_nothing_from_outside_narrows_them(tree: Path) -> None:
    code, said = run_gate(tree, **dict.fromkeys(NARROWING, "quant"), PIP_RETRIES="7")
    assert code == 0 and "\n=== all stages have passed\n" in said, said
    assert said.count("passed\n") == 1 + len(set(re.findall(r"^stage (\S+)", (ROOT / ".ci/run").read_text(), re.M)))
    assert said.count("allows what nothing needed") == len(allowed_skips((TESTS / "allowed_skips.toml").read_text()))
    names = {line.partition("=")[0] for line in (tree / "environments").read_text().splitlines()}
    assert names.isdisjoint(NARROWING) and {"PATH", "PIP_RETRIES", "GATE_STAGE"} <= names


@pytest.mark.processes
@pytest.mark.parametrize("stage", ["setup", "tsan"])
def test_a_stage_that_fails(tree: Path, stage: str) -> None:
    code, said = run_gate(tree, failing=stage)
    assert code == 1 and re.search(rf" {stage} +FAILED \(exit 1\)", said) and "stages have passed" not in said, said
    assert (" tsan " in said) == (stage != "setup"), "the others run, where there is something to test"


@pytest.mark.processes
def test_stages_for_which_no_time_was_left(tree: Path) -> None:
    code, said = run_gate(tree, LATEST_START_S="-1")
    assert code == 1 and "=== FAILED: not all stages ran" in said, said
    assert not (tree / "calls").exists() or "tsan:" not in (tree / "calls").read_text()
    assert re.search(r" tsan +NOT RUN: more than -1 s were gone", said)


@pytest.mark.processes
def test_named_stages_are_no_gate(tree: Path) -> None:
    code, said = run_gate(tree, "no-cuda", "fuzz")
    assert code == 1 and "=== FAILED: not all stages ran" in said, said
    assert (tree / "calls").read_text() == "fuzz: fuzz\n"
    assert len(re.findall(r" (?:no-cuda|fuzz) +passed", said)) == 2


TESTS_THAT_SKIP = """
import pytest
def test_allowed(): pytest.skip("there is no moon")
def test_inside(): pytest.skip("there is no sun")
@pytest.mark.xfail(reason="is broken")
def test_expected(): assert False
def test_well(): pass
"""
ALLOWED = '[[skip]]\ntest = "tests/test_skips.py::*"\nsays = "no moon"\nstages = ["test"]\nwhy = "for this test"\n'


@pytest.mark.processes
def test_a_skip_that_is_not_listed_fails(tree: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tree / "tests")
    (tree / "tests/allowed_skips.toml").write_text(ALLOWED)
    (tree / "tests/test_skips.py").write_text(TESTS_THAT_SKIP)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "pythonpath=tests", "tests"]
    environment = {**os.environ, "GATE_STAGE": "test"}
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert " 2 failed, 1 passed, 1 skipped in " in result.stdout, result.stdout


def test_tests_in_cpp_cannot_skip() -> None:
    """CTest takes a test that skips, or is disabled, for one that has passed; checks of a GPU say so in a report."""
    said = re.compile(r"GTEST_SKIP|DISABLED_\w|SKIP_RETURN_CODE|SKIP_REGULAR_EXPRESSION|PROPERTIES.*\bDISABLED\b")
    sources = [path for pattern in ("*.cpp", "*.h", "CMakeLists.txt") for path in TESTS.rglob(pattern)]
    assert len(sources) > 100
    skipping = [(path.name, found[0]) for path in sources if (found := said.search(path.read_text()))]
    assert skipping == [("main.cpp", "GTEST_SKIP")]
