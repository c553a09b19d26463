"""python -m gpu.link: `isthmus bench training` with few steps on simulated nodes that have this machine's GPUs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu.programs import FAILED, NOT_RUN, OK, Check


def main() -> int:
    """Return the exit status."""
    checks = measure()
    for check in checks:
        print(check.line(), flush=True)
    return int(any(check.result == FAILED for check in checks))


def measure() -> list[Check]:
    """Run the benchmark; return a check an arm."""
    try:
        from rich.console import Console

        from isthmus.benchmarks.simulate.ranks import RankFailure
        from isthmus.benchmarks.training.config import TrainingConfig
        from isthmus.benchmarks.training.report import build_report, markdown
        from isthmus.benchmarks.training.run import run_training
    except ModuleNotFoundError as error:
        return [Check("imports", NOT_RUN, detail=str(error))]
    config = TrainingConfig(device="cuda", links=("10gbit", "25gbit"), quick=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = build_report(run_training(config, Path(folder), Console(width=200, no_color=True)))
        except (ValueError, RankFailure) as error:
            return [Check("the benchmark", FAILED, detail=str(error))]
    print(markdown(report))
    rates = {link: round(rate / 1e9, 3) for link, rate in report["carried_bits_per_s"].items()}
    missing = "" if rates else f"no link was shaped: {report['network']}"
    about = Check("links carry, in Gbit/s", NOT_RUN if missing else OK, detail=missing, figures=rates)
    return [about, *(check_arm(name, arm, missing) for name, arm in report["arms"].items())]


def check_arm(name: str, arm: dict[str, Any], missing: str) -> Check:
    """The figures of an arm, whose collectives and bytes must be as predicted. missing: why times say nothing."""
    figures = {f"{link}, ms": 1e3 * values["median_step_s"] for link, values in arm["by_link"].items()}
    figures |= {"MB": arm["link_bytes_per_step"] / 1e6, "GiB a rank": arm["gpu_bytes"] / 2**30}
    figures |= {"validation loss": arm["val_loss"]}
    check = arm["check"]
    if not check["holds"]:
        return Check(name, FAILED, detail=f"not as predicted: {check}", figures=figures)
    return Check(name, NOT_RUN if missing else OK, detail=missing, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
