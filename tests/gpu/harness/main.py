"""The command: build, then every step; the report after each."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu.harness import versions
from gpu.harness.build import REPOSITORY, Places, environment, install_command
from gpu.harness.execute import execute
from gpu.harness.plan import build_steps, steps
from gpu.harness.records import FAILED, NOT_RUN
from gpu.harness.report import Report
from gpu.harness.steps import Outcome, Step, Verdict

NO_GPU = 77
DEFAULT_ARCHITECTURE = "90"
#: A step that cannot have this much any more is not begun.
LEAST_LIMIT_S = 5.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="tests/gpu/run",
        description="Build Isthmus on a machine with a GPU, check and measure it there, and write a report.",
        epilog="Exit status: 0 nothing failed, 1 something did, 77 there is no GPU (after building).",
    )
    names = [step.name for step in steps(Places(Path()))]
    parser.add_argument("--output", type=Path, default=REPOSITORY / "tests/gpu", metavar="DIR", help="for the report")
    parser.add_argument("--only", action="append", choices=names, metavar="STEP", help=f"of {', '.join(names)}")
    parser.add_argument("--build-only", action="store_true", help="build, and say so")
    parser.add_argument("--skip-build", action="store_true", help="what was built before is there")
    parser.add_argument("--build-dir", type=Path, default=REPOSITORY / "build/gpu", metavar="DIR")
    parser.add_argument("--arch", metavar="ARCH", help="of the build; default: the GPU's, or 90")
    parser.add_argument(
        "--prefix", default="", metavar="DIR", help="of Google Benchmark, CLI11 and nlohmann_json: for isthmus_perf"
    )
    parser.add_argument("--build-time-limit", type=float, default=240, metavar="SECONDS")
    parser.add_argument(
        "--time-limit", type=float, default=600, metavar="SECONDS", help="for all steps after the build"
    )
    options = parser.parse_args(arguments)
    if options.build_only and options.skip_build:
        parser.error("--build-only and --skip-build leave nothing to do")
    return options


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    options = parse(arguments)
    places = Places(options.build_dir.resolve())
    env = environment(places)
    said = versions.ask_torch(env)
    gpu = said.get("gpu", {})
    report = Report(gpu=gpu, versions=versions.collect(REPOSITORY, said, env))
    name = f"report-{versions.slug(gpu.get('name', 'no gpu'))}"
    folder = options.output if gpu and not options.build_only else places.build

    if not options.skip_build and not build(report, options, places, env):
        return finish(report, folder, name)
    if options.build_only or not gpu:
        if report.outcomes:
            finish(report, folder, name)
        print(said.get("error", "built; no GPU was used" if gpu else "built; there is no GPU here: nothing was run"))
        return 0 if options.build_only else NO_GPU
    chosen = [step for step in steps(places) if not options.only or step.name in options.only]
    report.planned += [step.name for step in chosen]
    deadline = time.monotonic() + options.time_limit
    for step in chosen:
        run_step(report, step, places, env, deadline - time.monotonic())
        report.write(folder, name)
    return finish(report, folder, name)


def build(report: Report, options: argparse.Namespace, places: Places, env: dict[str, str]) -> bool:
    """Run the steps that build, until one fails; return whether none did."""
    architecture = options.arch or report.gpu.get("capability", DEFAULT_ARCHITECTURE).replace(".", "")
    for step in build_steps(install_command(places, architecture, options.prefix), options.build_time_limit):
        report.planned.append(step.name)
        run_step(report, step, places, env, step.limit_s)
        if report.outcomes[-1].verdict.result == FAILED:
            return False
    return True


def run_step(report: Report, step: Step, places: Places, env: dict[str, str], seconds_left: float) -> None:
    """Run one step, whatever happens to it, and add how it ended to the report."""
    limit_s = min(step.limit_s, seconds_left)
    print(f"{step.name}: {step.what}", flush=True)
    if step.missing:
        outcome = Outcome(step, Verdict(NOT_RUN, step.missing))
    elif limit_s < LEAST_LIMIT_S:
        outcome = Outcome(step, Verdict(FAILED, "not begun: the time for all steps was up"))
    else:
        step = replace(step, limit_s=round(limit_s, 1))
        step_env = {**env, **step.env, "GPU_STEP_LIMIT_S": str(step.limit_s)}
        log = places.logs / f"{step.name}.log"
        ending = execute(step.command, env=step_env, cwd=REPOSITORY, limit_s=limit_s, log=log)
        outcome = Outcome(step, step.judge(ending), ending)
    report.outcomes.append(outcome)
    report.seconds += outcome.ending.seconds
    verdict = outcome.verdict
    reason = f": {verdict.reason}" if verdict.reason else ""
    print(f"  {verdict.result}{reason} ({outcome.ending.seconds:.1f} s)", flush=True)


def finish(report: Report, folder: Path, name: str) -> int:
    """Write the report, say what it comes to, return the exit status."""
    paths = report.write(folder, name)
    print(report.text())
    print(f"written: {', '.join(map(str, paths))}", file=sys.stderr)
    return 0 if report.passed else 1
