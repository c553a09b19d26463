"""Build Isthmus on a machine with a GPU, or take what was built; check and measure it there by pytest, and report.

Exit status: 0 all passed, 1 something failed, 2 something was not run, 77 no GPU (after building). See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu import machine
from gpu.build import REPOSITORY, Places, environment, install_command, why_unfit
from gpu.programs import FAILED, GRACE_S, NOT_RUN, OK, execute
from gpu.report import Outcome, Report
from gpu.steps import Steps

STEPS = Path(__file__).resolve().parent / "test_steps.py"
INCOMPLETE = 2
NO_GPU = 77
BUILD_S = 300
#: What is left of all the time for ending a program that hangs, and for the last report.
RESERVE_S = GRACE_S + 3


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "tests/gpu", metavar="DIR", help="for the report")
    parser.add_argument("--only", action="append", metavar="STEP", help="a test of test_steps.py, without test_")
    parser.add_argument("--prebuilt", type=Path, metavar="DIR", help="by `make gpu-programs`: taken if it fits")
    parser.add_argument("--commit", help="of the sources, where git cannot tell")
    parser.add_argument("--build-dir", type=Path, default=REPOSITORY / "build/gpu", metavar="DIR")
    parser.add_argument("--time-limit", type=float, default=900, metavar="SECONDS", help="for everything")
    return parser.parse_args(arguments)


def take_prebuilt(folder: Path, said: dict[str, Any], report: Report) -> bool:
    """Return whether that folder fits; report why if it does not."""
    reason = why_unfit(folder, said)
    what = f"what was built elsewhere fits: {folder.name}"
    report.add(Outcome("prebuilt", what, NOT_RUN if reason else OK, reason))
    for program in (folder / "programs").rglob("*"):
        with suppress(OSError):  # the folder may be read-only
            program.chmod(0o755)  # as they travel, modes may get lost
    return not reason


def build(places: Places, architecture: str, limit_s: float, report: Report) -> bool:
    """Build and install; return whether programs are there."""
    start = time.monotonic()
    command = install_command(places, architecture)
    log = places.logs / "build.log"
    ending = execute(command, env=environment(places), cwd=REPOSITORY, limit_s=min(limit_s, BUILD_S), log=log)
    reason = "" if ending.exit_code == 0 else f"exit status {ending.exit_code}"
    what = "compile core, CUDA code and torch module, and install"
    report.add(
        Outcome(
            *("build", what, FAILED if reason else OK, reason, time.monotonic() - start),
            *(tuple(command), (), tuple(ending.lines[-60:])),
        )
    )
    return not reason


def main(arguments: Sequence[str], steps: Path = STEPS) -> int:
    """Return the exit status. steps: a file of tests."""
    options = parse(arguments)
    deadline = time.monotonic() + options.time_limit - RESERVE_S
    places = Places(options.build_dir.resolve())
    said = machine.ask_torch(environment(places))
    gpu = said.get("gpu", {})
    versions = machine.versions(said, environment(places)) | ({"commit": options.commit} if options.commit else {})
    report = Report(gpu, versions, options.output if gpu else places.build, places.logs)
    prebuilt = options.prebuilt.resolve() if options.prebuilt else None
    if prebuilt and not take_prebuilt(prebuilt, said, report):
        prebuilt = None
    architecture = gpu.get("capability", "90").replace(".", "")
    if (prebuilt or build(places, architecture, deadline - time.monotonic(), report)) and gpu:
        names = ["import", *options.only] if options.only else []
        chosen = [f"{steps}::test_{name}" for name in names] or [str(steps)]
        how = f"-v --import-mode=importlib -p no:cacheprovider -p no:timeout -c {os.devnull}".split()
        plugins = [Steps(replace(places, prebuilt=prebuilt), deadline), report]
        pytest.main([*how, f"--rootdir={steps.parent}", *chosen], plugins=plugins)
    paths = report.write()
    print(report.text())
    print(f"written: {', '.join(map(str, paths))}", file=sys.stderr)
    if report.failed:
        return 1
    if not gpu:
        return NO_GPU
    return INCOMPLETE if report.not_run or not report.planned else 0
