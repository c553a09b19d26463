"""Makes the seeds of all fuzzers and runs these, one for each processor at a time; shares the seconds over them.

Usage: run.py DIRECTORY_OF_EXECUTABLES SECONDS [TARGET ...]. What reads updates of weights is Python,
and needs atheris. Seeds are made anew beside the executables; what was found new is kept there, as is an input that
fails. Exit code 1 if one failed, or in the gate was left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from seeds import SEEDS

HERE = Path(__file__).parent
# The limit of a run; the slowest input takes hundredths of that.
INPUT_TIMEOUT_S = 10
MOST_PACKET_BYTES = 256
MOST_TEXT_BYTES = 4096
PYTHON = ("updates",)


@dataclass
class Run:
    """What one fuzzer did."""

    target: str
    exit_code: int
    log: Path
    text: str

    def summary(self) -> str:
        """One line for people; of a failure, the end of its log."""
        if self.failed():
            return f"{self.target}: FAILED, see {self.log}\n" + "\n".join(self.text.splitlines()[-30:])
        executed = re.search(r"Done (\d+) runs", self.text)
        edges, _, inputs = self._covered()[-1]
        return f"{self.target}: {executed[1] if executed else '?'} inputs, {edges} edges, {inputs} kept"

    def failed(self) -> bool:
        """Whether an input failed, or inputs were tried blindly: without a count of what they reach."""
        return self.exit_code != 0 or not self._covered()

    def _covered(self) -> list[tuple[str, str, str]]:
        return re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", self.text)


def seeds_of(target: str, directory: Path) -> Path:
    """Write the seeds of a target; returns their folder."""
    folder = directory / "seeds" / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    SEEDS[target](folder)
    return folder


def run(target: str, directory: Path, seconds: int) -> Run:
    """Fuzz one target."""
    corpus = directory / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    log = directory / f"{target}.log"
    flags = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_TIMEOUT_S}",
        "-len_control=0",
        "-print_final_stats=1",
        f"-artifact_prefix={directory}/failed-{target}-",
    ]
    program = [str(directory / f"fuzz_{target}")]
    if target in PYTHON:
        program = [sys.executable, str(HERE / f"fuzz_{target}.py")]
        flags += [f"-max_len={MOST_TEXT_BYTES}"]
    elif target == "machines":
        flags += [f"-max_len={MOST_TEXT_BYTES}", f"-dict={HERE / 'machine_files.dict'}"]
    else:
        flags += [f"-max_len={MOST_PACKET_BYTES}"]
    command = [*program, *flags, str(corpus), str(seeds_of(target, directory))]
    environment = dict(os.environ)
    if target == "machines":
        # hwloc leaks where a file is damaged. libFuzzer's own option still looks for leaks at the end of a run.
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    with log.open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False).returncode
    return Run(target, code, log, log.read_text(errors="replace"))


def main() -> int:
    directory, seconds = Path(sys.argv[1]), int(sys.argv[2])
    targets = sys.argv[3:] or sorted(SEEDS)
    left_out = [target for target in targets if target in PYTHON and find_spec("atheris") is None]
    if left_out:
        print(f"skipped, as atheris is not installed: {', '.join(left_out)}")
        targets = [target for target in targets if target not in left_out]
    at_a_time = min(len(targets), os.cpu_count() or 1)
    each = max(1, seconds * at_a_time // len(targets))
    with ThreadPoolExecutor(at_a_time) as pool:
        runs = list(pool.map(lambda target: run(target, directory, each), targets))
    for one in runs:
        print(one.summary())
    return int(any(one.failed() for one in runs))


if __name__ == "__main__":
    sys.exit(main())
