"""Runs all fuzzers from their seeds, one for each processor at a time, and shares the seconds over them.

Usage: run.py DIRECTORY_OF_EXECUTABLES SECONDS. What was found new is kept beside the executables, as is an input that
fails. Exit code 1 if one failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"
# Of a run; the slowest input takes hundredths of that.
INPUT_TIMEOUT_S = 10
MOST_INPUT_BYTES = 256


@dataclass
class Run:
    """What one fuzzer did."""

    target: str
    exit_code: int
    log: Path
    text: str

    def summary(self) -> str:
        """One line for people."""
        if self.exit_code:
            return f"{self.target}: FAILED, see {self.log}\n" + "\n".join(self.text.splitlines()[-30:])
        executed = re.search(r"Done (\d+) runs", self.text)
        covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", self.text)
        edges, _, inputs = covered[-1] if covered else ("?", "?", "?")
        return f"{self.target}: {executed[1] if executed else '?'} inputs, {edges} edges, {inputs} kept"


def run(target: str, directory: Path, seconds: int) -> Run:
    """Fuzz one target."""
    corpus = directory / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    log = directory / f"{target}.log"
    command = [
        str(directory / f"fuzz_{target}"),
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_TIMEOUT_S}",
        f"-max_len={MOST_INPUT_BYTES}",
        "-len_control=0",
        "-print_final_stats=1",
        f"-artifact_prefix={directory}/failed-{target}-",
        str(corpus),
        str(SEEDS / target),
    ]
    with log.open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return Run(target, code, log, log.read_text(errors="replace"))


def main() -> int:
    directory, seconds = Path(sys.argv[1]), int(sys.argv[2])
    targets = sorted(path.name for path in SEEDS.iterdir())
    at_a_time = min(len(targets), os.cpu_count() or 1)
    each = max(1, seconds * at_a_time // len(targets))
    with ThreadPoolExecutor(at_a_time) as pool:
        runs = list(pool.map(lambda target: run(target, directory, each), targets))
    for one in runs:
        print(one.summary())
    return int(any(one.exit_code for one in runs))


if __name__ == "__main__":
    sys.exit(main())
