"""The command: build, or take what was built; then every step; the report and the logs after each."""

from __future__ import annotations

import argparse
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu.harness import prebuilt, versions
from gpu.harness.build import REPOSITORY, Places, environment, install_command
from gpu.harness.execute import GRACE_S, execute
from gpu.harness.plan import build_step, import_step, steps
from gpu.harness.records import FAILED, NOT_RUN, OK
from gpu.harness.report import Report
from gpu.harness.steps import Outcome, Step, Verdict

NO_GPU = 77
DEFAULT_ARCHITECTURE = "90"
#: What is left of all the time for ending a program that hangs, and for the last report.
RESERVE_S = GRACE_S + 3
TIME_WAS_UP = "time was up"
FAKE_GPU = {"name": "fake GPU", "capability": "9.0"}


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
    parser.add_argument(
        "--prebuilt", type=Path, metavar="DIR", help="by `make gpu-programs`: nothing is built if it fits"
    )
    parser.add_argument("--commit", help="of the sources, where git cannot tell")
    parser.add_argument("--build-only", action="store_true", help="build, and say so")
    parser.add_argument("--skip-build", action="store_true", help="what was built before is there")
    parser.add_argument("--build-dir", type=Path, default=REPOSITORY / "build/gpu", metavar="DIR")
    parser.add_argument("--arch", metavar="ARCH", help="of the build; default: the GPU's, or 90")
    parser.add_argument("--build-time-limit", type=float, default=300, metavar="SECONDS", help="of all the time")
    parser.add_argument("--time-limit", type=float, default=900, metavar="SECONDS", help="for everything")
    parser.add_argument("--device", choices=("cuda", "fake"), default="cuda", help="fake: tests/fake_gpu, to rehearse")
    options = parser.parse_args(arguments)
    if options.build_only and options.skip_build:
        parser.error("--build-only and --skip-build leave nothing to do")
    return options


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    deadline = time.monotonic() + parse(arguments).time_limit - RESERVE_S
    return Run(parse(arguments), deadline).everything()


@dataclass
class Run:
    """One run of the command. deadline: for all steps, by time.monotonic()."""

    options: argparse.Namespace
    deadline: float

    def everything(self) -> int:
        """Return the exit status."""
        options = self.options
        self.places = Places(options.build_dir.resolve())
        said = self._ask_torch()
        gpu = said.get("gpu", {})
        about = versions.collect(REPOSITORY, said, environment(self.places))
        self.report = Report(gpu=gpu, versions=about | ({"commit": options.commit} if options.commit else {}))
        self.name = f"report-{versions.slug(gpu.get('name', 'no gpu'))}"
        self.folder = options.output if gpu and not options.build_only else self.places.build
        takes_prebuilt = options.prebuilt is not None and self._take_prebuilt(said)
        chosen = [step for step in steps(self.places, options.device) if not options.only or step.name in options.only]
        if gpu and not options.build_only:
            self.report.planned += [step.name for step in chosen]
        if not self._make_ready(takes_prebuilt):
            return self._finish()
        if options.build_only or not gpu:
            self._finish()
            print(
                said.get("error", "ready; no GPU was used" if gpu else "ready; there is no GPU here: nothing was run")
            )
            return 0 if options.build_only else NO_GPU
        for step in chosen:
            self._run_step(step)
        return self._finish()

    def _ask_torch(self) -> dict[str, Any]:
        said = versions.ask_torch(environment(self.places))
        return said | {"available": True, "gpu": FAKE_GPU} if self.options.device == "fake" else said

    def _take_prebuilt(self, said: dict[str, Any]) -> bool:
        """Use the prebuilt folder if it fits; report why if it does not."""
        folder: Path = self.options.prebuilt.resolve()
        reason = prebuilt.why_unfit(folder, REPOSITORY, said)
        step = Step("prebuilt", f"what was built elsewhere fits: {folder.name}", (), 0)
        self._add(Outcome(step, Verdict(NOT_RUN, reason) if reason else Verdict(OK)))
        if reason:
            return False
        self.places = replace(self.places, prebuilt=folder)
        for program in (folder / "programs").iterdir():
            program.chmod(0o755)  # as they travel, modes may get lost
        return True

    def _make_ready(self, takes_prebuilt: bool) -> bool:
        """Build unless there is no need, and look whether what is there loads; return whether it does."""
        options = self.options
        if not takes_prebuilt and not options.skip_build:
            architecture = options.arch or self.report.gpu.get("capability", DEFAULT_ARCHITECTURE).replace(".", "")
            command = install_command(self.places, architecture)
            if not self._run_step(build_step(command, options.build_time_limit)):
                return False
        return options.skip_build or self._run_step(import_step())

    def _run_step(self, step: Step) -> bool:
        """Run one step, whatever happens to it, and report how it ended; return whether it was run and is ok."""
        print(f"{step.name}: {step.what}", flush=True)
        if step.missing:
            return self._add(Outcome(step, Verdict(NOT_RUN, step.missing)))
        left_s = self.deadline - time.monotonic()
        if left_s < min(step.least_s, step.limit_s):
            return self._add(Outcome(step, Verdict(NOT_RUN, TIME_WAS_UP)))
        limited = replace(step, limit_s=round(min(step.limit_s, left_s), 1))
        env = {**environment(self.places), **step.env, "GPU_STEP_LIMIT_S": str(limited.limit_s)}
        log = self.places.logs / f"{step.name}.log"
        ending = execute(step.command, env=env, cwd=REPOSITORY, limit_s=limited.limit_s, log=log)
        verdict = step.judge(ending)
        was_cut = ending.timed_out and limited.limit_s < step.limit_s
        if was_cut and not any(check.result == FAILED for check in ending.checks):
            verdict = Verdict(NOT_RUN, f"{TIME_WAS_UP} after {limited.limit_s:.0f} s; it may take {step.limit_s:.0f}")
        return self._add(Outcome(limited, verdict, ending))

    def _add(self, outcome: Outcome) -> bool:
        """Report an outcome at once: a kill later loses nothing of it."""
        if outcome.step.name not in self.report.planned:
            self.report.planned.insert(len(self.report.outcomes), outcome.step.name)
        self.report.outcomes.append(outcome)
        self.report.seconds += outcome.ending.seconds
        self._write()
        verdict = outcome.verdict
        reason = f": {verdict.reason}" if verdict.reason else ""
        print(f"  {verdict.result}{reason} ({outcome.ending.seconds:.1f} s)", flush=True)
        return verdict.result == OK

    def _write(self) -> tuple[Path, Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / "logs.tar.gz.new"  # a reader never sees half of it
        with tarfile.open(draft, "w:gz") as archive:
            for log in sorted(self.places.logs.glob("*.log")):
                archive.add(log, log.name)
        draft.replace(self.folder / "logs.tar.gz")
        return self.report.write(self.folder, self.name)

    def _finish(self) -> int:
        """Write the report, say what it comes to, return the exit status."""
        paths = self._write()
        print(self.report.text())
        print(f"written: {', '.join(map(str, paths))}", file=sys.stderr)
        return 0 if self.report.passed else 1
