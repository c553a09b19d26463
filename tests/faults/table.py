"""Runs all rows of the fault table and puts them into docs/faults.md: `python tests/faults/table.py`.

Exit code 1 if a row took longer than its limit, or lacks what its errors have to say.
"""

import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.harness import RankOutcome, complaints, running
from faults.rows import ROWS, Row
from isthmus import _C
from support.tested_codecs import DEFAULT

PAGE = Path(__file__).parents[2] / "docs/faults.md"
# The part of the page that is made here.
TABLE = re.compile(r"^Measured on commit .*?\n(?=\n## )", re.MULTILINE | re.DOTALL)
HEAD = """\
| fault | operation (codec) | error | s to error | s to end |
|---|---|---|---|---|
"""
# What ranks see of others that failed before them.
CONSEQUENCE = re.compile(r"Connection (closed|reset) by peer|Application timeout caused pair closure")


def shortened(error: str) -> str:
    """Return an error without what differs from run to run and helps no reader of a table."""
    error = error.removeprefix("isthmus: ").splitlines()[0]
    error = re.sub(r"\[\S*/gloo/\S+\] ", "", error)
    error = re.sub(r" This is typically caused by .*?GLHF! \S+\.(?= |$)", "", error)
    error = re.sub(r" \[?(\d+\.){3}\d+\]?:\d+", "", error)
    error = error.replace(": dead, stopped, or not in a collective of this group", "")
    own, *others = error.split("; ")
    return "; ".join([own, *(text for text in others if not CONSEQUENCE.search(text))]).removesuffix(".")


def line(row: Row, outcomes: list[RankOutcome]) -> str:
    survivors = [rank for rank in outcomes if rank.rank != row.faulty_rank]
    failed = sorted((rank for rank in survivors if rank.error), key=lambda rank: rank.seconds_to_error)
    said = shortened(failed[0].error) if failed else "no error: all goes on"
    said += f" *({row.remark})*" if row.remark else ""
    to_error = f"{max(rank.seconds_to_error for rank in failed):.1f}" if failed else "-"
    to_end = f"{max(rank.seconds_to_end for rank in survivors):.1f}"
    said += " **(not as it has to be)**" if any(complaints(row, outcomes)) else ""
    cells = (*begin(row), said, to_error, to_end)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def begin(row: Row) -> tuple[str, str]:
    settings = [row.settings.get("ISTHMUS_CODEC", DEFAULT), *filter(None, [row.settings.get("ISTHMUS_WEIGHTS")])]
    name = row.name + (f" (rank {row.faulty_rank})" if row.faulty_rank != 3 else "")
    return name, f"{row.operation.__name__.replace('_', ' ')} ({', '.join(settings)})"


def main() -> int:
    with running(ROWS, at_a_time=1) as futures:
        outcomes = {row.name: futures[row.name].result() for row in ROWS}
    lacking = [f"{row.name}: {complaint}" for row in ROWS for complaint in complaints(row, outcomes[row.name])]
    print(*lacking, f"{len(ROWS)} rows", sep="\n")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=PAGE.parent, capture_output=True, text=True)
    versions = f"torch {torch.__version__}, packets of version {_C.PACKET_VERSION}"
    measured = f"Measured on commit `{commit.stdout.strip()}`, {platform.machine()}, {versions}.\n\n"
    made = measured + HEAD + "".join(line(row, outcomes[row.name]) for row in ROWS)
    PAGE.write_text(TABLE.sub(lambda _: made, PAGE.read_text()))
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
