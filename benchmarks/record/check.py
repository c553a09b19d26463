#!/usr/bin/env python3
"""The CPU's speed beside the recorded one, in ratios that hold on a busy machine: a gate that is no timed test.

    python benchmarks/record/check.py PROGRAM            compares; fails where a ratio has halved
    python benchmarks/record/check.py PROGRAM --write    records anew what this machine has: record.json

PROGRAM is bench_codecs: codecs, weights and a small step, in CPU time of their own threads, each as a share of memcpy's
speed and as a multiple of the baseline instruction set's in the same process. Each set that the machine has is
measured, the best one as the product runs it. Shares of memcpy are judged where the processor is the recorded one,
multiples of the baseline everywhere: at least the root of the recorded one. Of a set that nothing is recorded for, they
must exceed 1.1 in the mean. What fails is measured again, twice: the best counts.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.benchmarks.common.report import machine

RECORD = Path(__file__).with_name("record.json")
ROWS = (
    *(
        f"{codec}/{way}/4MiB"
        for codec in ("quant/4bit", "quant/8bit", "tagc/10x", "none")
        for way in ("encode", "decode")
    ),
    *(f"weights/{rate}/{way}/4MiB" for rate in ("1e-6", "1e-5", "1e-4") for way in ("encode", "decode")),
    "step/1MiB",
)
BASELINE = "baseline"
TRIES = 3
#: What an instruction set brings less to is not judged by it.
LEAST_GAIN = 1.3
UNRECORDED_GAIN = 1.1
Ratios = dict[str, float]  # of_memcpy, of_baseline
Rows = dict[str, Ratios]


def measure(program: str, rows: tuple[str, ...], instruction_set: str) -> tuple[str, Rows]:
    """Return the set in use, and each row's ratios. instruction_set: "" for the one that the program takes itself."""
    command = [program, f"--benchmark_filter=^({'|'.join(rows)})/iterations", "--benchmark_format=json"]
    command += ["--beside_baseline"] if instruction_set != BASELINE else []
    command += [f"--instruction_set={instruction_set}"] if instruction_set else []
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found = {row["name"].partition("/iterations")[0]: row for row in report["benchmarks"]}
    missing = set(rows) - set(found)
    if missing:
        raise ValueError(f"{program} has no benchmark {', '.join(sorted(missing))}")
    return report["context"]["instruction_set"], {
        name: {ratio: round(found[name].get(ratio, 1.0), 3) for ratio in ("of_memcpy", "of_baseline")} for name in rows
    }


def least(recorded: Ratios, same_processor: bool) -> Ratios:
    """The ratios that a row must reach; none where it is not judged."""
    judged = {"of_memcpy": recorded["of_memcpy"] / 2} if same_processor else {}
    if recorded["of_baseline"] >= LEAST_GAIN:
        judged["of_baseline"] = math.sqrt(recorded["of_baseline"])
    return judged


def too_slow(rows: Rows, recorded: Mapping[str, Any], same_processor: bool) -> list[str]:
    """Name the rows that a ratio of is too small."""
    return [
        name
        for name, ratios in rows.items()
        if any(ratios[ratio] < bound for ratio, bound in least(recorded["rows"][name], same_processor).items())
    ]


def better(one: Rows, other: Rows) -> Rows:
    """The greater of all ratios."""
    return {
        name: {ratio: max(value, other.get(name, ratios)[ratio]) for ratio, value in ratios.items()}
        for name, ratios in one.items()
    }


def show(name: str, rows: Rows, recorded: Mapping[str, Any], slow: list[str]) -> None:
    """Print a set's ratios beside those recorded."""
    print(f"\n{name}{'':27}of memcpy (recorded)   of baseline (recorded)")
    for row, ratios in rows.items():
        beside = recorded["rows"][row] if recorded else {}
        cells = (f"{ratios[one]:9.2f} ({beside[one]:.2f})" if beside else f"{ratios[one]:9.2f}" for one in ratios)
        print(f"{row:28}{'       '.join(cells)}{'   TOO SLOW' if row in slow else ''}")


def check(program: str, instruction_set: str, records: Mapping[str, Any]) -> tuple[str, bool]:
    """Measure one set and compare. Return its name, and whether it is as fast as it should be."""
    name, rows = measure(program, ROWS, instruction_set)
    if name not in records:
        mean = math.exp(sum(math.log(ratios["of_baseline"]) for ratios in rows.values()) / len(rows))
        show(name, rows, {}, [])
        print(f"nothing is recorded for {name}; {mean:.2f} times the baseline's speed in the mean")
        return name, name == BASELINE or mean >= UNRECORDED_GAIN
    recorded, here = records[name], machine()["processor"]
    same = here == recorded["machine"]["processor"]
    for _ in range(TRIES - 1):
        if slow := too_slow(rows, recorded, same):
            rows = better(rows, measure(program, tuple(slow), instruction_set)[1])
    slow = too_slow(rows, recorded, same)
    show(name, rows, recorded, slow)
    where = "" if same else f"; this is {here}: shares of memcpy are not judged"
    print(f"recorded on {recorded['machine']['processor']}, commit {recorded['commit']}{where}")
    return name, not slow


def write(program: str, instruction_set: str, records: dict[str, Any]) -> str:
    """Record one set. Return its name."""
    name, rows = measure(program, ROWS, instruction_set)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    records[name] = {"machine": machine() | {"instruction_set": name}, "commit": commit.strip(), "rows": rows}
    RECORD.write_text(json.dumps(records, indent=1) + "\n")
    show(name, rows, {}, [])
    return name


def main() -> None:
    """Do what the arguments say."""
    program, *flags = sys.argv[1:]
    writes = flags == ["--write"]
    if flags and not writes:
        sys.exit(f"{' '.join(flags)}: expected nothing, or --write")
    records: dict[str, Any] = json.loads(RECORD.read_text())
    best = machine()["instruction_set"]  # as the product says
    others = [name for name in ("AVX2", BASELINE) if name != best and best.startswith("AVX")]
    failed = []
    for asked in ("", *others):
        if writes:
            name = write(program, asked, records)
        else:
            name, well = check(program, asked, records)
            if not well:
                failed.append(name)
        if not asked and name != best:
            sys.exit(f"{program} uses {name}, isthmus uses {best}: build both")
    if failed:
        sys.exit(f"\nslower than half of what is recorded: {', '.join(failed)} (benchmarks/record/check.py)")


if __name__ == "__main__":
    main()
