"""compute-sanitizer: where it is, and what its output means."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gpu.harness.execute import Ending
from gpu.harness.records import FAILED, NOT_RUN, OK
from gpu.harness.steps import Verdict, judge_checks

#: With this status it ends where it found something: no program of ours does.
FOUND_SOMETHING = 99
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
# What it prints where the machine does not let it look at the GPU.
_REFUSALS = ("Device not supported", "Unable to find injection library", "Failed to initialize", "not supported on")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)(?P<rest>.*)")


def find() -> str | None:
    """Return the program, None if there is none."""
    return shutil.which("compute-sanitizer") or next((place for place in _PLACES if Path(place).exists()), None)


def judge(ending: Ending) -> Verdict:
    """Judge a program that ran under it: what it found first, then the program's own checks."""
    refusals = [line for line in ending.tail if any(text in line for text in _REFUSALS)]
    if refusals:
        return Verdict(NOT_RUN, f"compute-sanitizer does not run here: {refusals[0].lstrip('= ')}")
    own = judge_checks(ending)
    if ending.timed_out or ending.error:
        return own
    summaries = [match for line in ending.tail if (match := _SUMMARY.search(line))]
    if not summaries:
        return Verdict(FAILED, f"compute-sanitizer gave no summary; {own.reason or 'the program itself passed'}")
    if any(int(match[1]) > 0 for match in summaries):
        return Verdict(FAILED, summaries[0][0])
    return own if own.result != OK else Verdict(OK)
