"""A skip in the gate is a failure, unless tests/allowed_skips.toml allows it. Elsewhere a skip is a skip."""

import os
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "allowed_skips.toml"


@dataclass(frozen=True)
class AllowedSkip:
    test: str
    says: str
    stages: tuple[str, ...]
    why: str

    def allows(self, test: str, reason: str, stage: str) -> bool:
        return fnmatchcase(test, self.test) and self.says in reason and stage in self.stages


def allowed_skips(text: str) -> list[AllowedSkip]:
    return [AllowedSkip(**entry | {"stages": tuple(entry["stages"])}) for entry in tomllib.loads(text)["skip"]]


def judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip, or of a failure that was expected, that the list does not allow to the gate's stage.

    .ci/run says in GATE_STAGE which stage this is, and in GATE_SKIPS a file to which goes what was allowed.
    """
    stage = os.environ.get("GATE_STAGE", "")
    if not stage or not report.skipped:
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    for entry in allowed_skips(LIST.read_text()):
        if entry.allows(report.nodeid, reason, stage):
            with open(os.environ.get("GATE_SKIPS", os.devnull), "a") as used:
                used.write(f"{entry}\n")
            return
    report.outcome = "failed"
    report.longrepr = f"{reason}\n{LIST.name} does not allow {report.nodeid} to skip in stage {stage}"
    vars(report).pop("wasxfail", None)


def main() -> None:
    """Tell of entries that allowed nothing, after a whole gate. Argument: the file that was GATE_SKIPS."""
    used = set(Path(sys.argv[1]).read_text().splitlines())
    for entry in allowed_skips(LIST.read_text()):
        if str(entry) not in used:
            print(f"{LIST.name} allows what nothing needed: {entry.test}, {entry.says!r}, in {', '.join(entry.stages)}")


if __name__ == "__main__":
    main()
