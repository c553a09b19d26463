"""The command: build, or take what was built; then every step; the report and the logs after each."""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu.harness import machine
from gpu.harness.build import REPOSITORY, Places, environment, install_command, why_unfit
from gpu.harness.plan import build_step, import_step, steps
from gpu.harness.records import FAILED, NOT_RUN, OK
from gpu.harness.report import Report
from gpu.harness.steps import GRACE_S, Outcome, Step, execute

INCOMPLETE = 2
NO_GPU = 77
#: What is left of all the time for ending a program that hangs, and for the last report.
RESERVE_S = GRACE_S + 3
TIME_WAS_UP = "time was up"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="tests/gpu/run",
        description="Build Isthmus on a machine with a GPU, check and measure it there, and write a report.",
        epilog="Exit status: 0 all passed, 1 something failed, 2 something was not run, 77 no GPU (after building).",
    )
    names = [step.name for step in steps(Places(Path()))]
    parser.add_argument("--output", type=Path, default=REPOSITORY / "tests/gpu", metavar="DIR", help="for the report")
    parser.add_argument("--only", action="append", choices=names, metavar="STEP", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--prebuilt", type=Path, metavar="DIR", help="by `make gpu-programs`: nothing is built if it fits"
    )
    parser.add_argument("--commit", help="of the sources, where git cannot tell")
    parser.add_argument("--build-dir", type=Path, default=REPOSITORY / "build/gpu", metavar="DIR")
    parser.add_argument("--time-limit", type=float, default=900, metavar="SECONDS", help="for everything")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    return Run(parse(arguments)).everything()


class Run:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.deadline = time.monotonic() + options.time_limit - RESERVE_S
        self.places = Places(options.build_dir.resolve())
        self.said = machine.ask_torch(environment(self.places))
        self.gpu = self.said.get("gpu", {})
        versions = machine.versions(self.said, environment(self.places))
        self.report = Report(self.gpu, versions | ({"commit": options.commit} if options.commit else {}))
        self.folder = options.output if self.gpu else self.places.build

    def everything(self) -> int:
        """Return the exit status."""
        options = self.options
        self._take_prebuilt()
        chosen = [step for step in steps(self.places) if not options.only or step.name in options.only]
        self.report.planned += [step.name for step in chosen if self.gpu]
        if self._build() and self.gpu:
            loads = self._run_step(import_step())
            for step in chosen:
                if loads or step.command[0] != sys.executable:
                    self._run_step(step)
                else:
                    self._add(Outcome(step, NOT_RUN, "isthmus does not load"))
        paths = self._write()
        print(self.report.text())
        print(f"written: {', '.join(map(str, paths))}", file=sys.stderr)
        if self.report.failed:
            return 1
        if not self.gpu:
            return NO_GPU
        return INCOMPLETE if self.report.not_run else 0

    def _take_prebuilt(self) -> None:
        """Use the prebuilt folder if it fits; report why if it does not."""
        if self.options.prebuilt is None:
            return
        folder: Path = self.options.prebuilt.resolve()
        reason = why_unfit(folder, self.said)
        step = Step("prebuilt", f"what was built elsewhere fits: {folder.name}", (), 0)
        if self._add(Outcome(step, NOT_RUN if reason else OK, reason)):
            self.places = replace(self.places, prebuilt=folder)
            for program in (folder / "programs").rglob("*"):
                with suppress(OSError):  # the folder may be read-only
                    program.chmod(0o755)  # as they travel, modes may get lost

    def _build(self) -> bool:
        """Build unless there is no need; return whether programs are there."""
        architecture = self.gpu.get("capability", "90").replace(".", "")
        build = build_step(install_command(self.places, architecture))
        return self.places.prebuilt is not None or self._run_step(build)

    def _run_step(self, step: Step) -> bool:
        """Run one step, whatever happens to it, and report how it ended; return whether it was run and is ok."""
        print(f"{step.name}: {step.what}", flush=True)
        left_s = self.deadline - time.monotonic()
        missing = step.missing or (TIME_WAS_UP if left_s < min(step.least_s, step.limit_s) else "")
        if missing:
            return self._add(Outcome(step, NOT_RUN, missing))
        limit_s = round(min(step.limit_s, left_s), 1)
        log = self.places.logs / f"{step.name}.log"
        ending = execute(step, env=environment(self.places), cwd=REPOSITORY, limit_s=limit_s, log=log)
        result, reason = step.judge(ending)
        was_cut = ending.timed_out and limit_s < step.limit_s
        if was_cut and not any(check.result == FAILED for check in ending.checks):
            result, reason = NOT_RUN, f"{TIME_WAS_UP} after {limit_s:.0f} s; it may take {step.limit_s:.0f}"
        return self._add(Outcome(step, result, reason, ending))

    def _add(self, outcome: Outcome) -> bool:
        """Report an outcome at once: a kill later loses nothing of it."""
        self.report.outcomes.append(outcome)
        self._write()
        print(f"  {outcome.result} {outcome.reason} ({outcome.ending.seconds:.1f} s)", flush=True)
        return outcome.result == OK

    def _write(self) -> tuple[Path, Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / "logs.tar.gz.new"  # a reader never sees half of it
        with tarfile.open(draft, "w:gz") as archive:
            for log in sorted(self.places.logs.glob("*.log")):
                archive.add(log, log.name)
        draft.replace(self.folder / "logs.tar.gz")
        name = re.sub(r"[^a-z0-9]+", "-", self.gpu.get("name", "no gpu").lower()).strip("-")
        return self.report.write(self.folder, f"report-{name}")
