"""Runs all rows of the fault table and writes docs/faults.md: `python tests/faults/table.py [FILE]`.

Exit code 1 if a row took longer than its limit, or lacks what its errors have to say.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.harness import Harness, Outcome, RankOutcome
from faults.judgement import LIMIT_S, complaints
from faults.rows import GRACE_S, NUM_NODES, ROWS, TIMEOUT_S, WORLD_SIZE, Row
from isthmus import _C
from support.tested_codecs import DEFAULT

PAGE = Path(__file__).parents[2] / "docs/faults.md"
# What ranks see of others that failed before them.
CONSEQUENCE = re.compile(r"Connection (closed|reset) by peer|Application timeout caused pair closure")

INTRODUCTION = f"""\
# Faults

What goes wrong, and what the other ranks then say. Made by `python tests/faults/table.py`, which runs each row with
{WORLD_SIZE} processes on {NUM_NODES} simulated nodes. The tests run the same rows, `tests/faults/rows.py`.
Faults in every phase and damage in every field of every codec's packets are tested in one process, `tests/cpp`.

The ranks connect and call their operation a few times. Then the group's timeout becomes {TIMEOUT_S:g} s, rank 3 (or the
one named) does what the first column says, and the others go on with the operation of the second. Every survivor has
to end within timeout + {GRACE_S:g} s, that is {LIMIT_S:g} s, with an error that names the operation, the phase, the
unit and the ranks that are silent or elsewhere; [operating.md](operating.md#faults) says how they know. No process,
network namespace or link may be left. Damage is done by a library between Gloo and the kernel, below the codec.

- **error**: of the survivor that failed first. Addresses, Gloo's source lines, and what it says of ranks that only lost
  a connection are left out.
- **to error**, **to end**: seconds from the fault (from the call that failed, if that came later) to the error and to
  the end of the process, the longest of all survivors. In both are the 2 s that ranks wait for a silent one's report.
"""

NOT_NAMED = """
## What is not named, and what is not seen

- An exact collective is one call of Gloo: it has no phases and no unit. Ranks report its kind and its number, not its
  size and type. Gloo ends a process that gets more than it expects, with its own message: of two ranks that call an
  exact collective with different sizes the one with the smaller dies, here as with Gloo alone, and is silent to the
  others. The two-tier paths tag what they send, so that there nobody dies of that.
- Without an answer from the store only the store's host is named: nothing tells the others apart.
- What is in no packet has no checksum but TCP's, as with Gloo alone: what stays in a node, exact all-gathers, whatever
  goes to Gloo, and index and sketch of the single tier, which go through reductions.
- A process that the kernel kills for want of memory is a silent rank. In the row above an allocation fails.
"""


def survivors(row: Row, outcome: Outcome) -> list[RankOutcome]:
    """Return the ranks that are held to the limit."""
    return [rank for rank in outcome.ranks if rank.rank != row.faulty_rank]


def shortened(error: str) -> str:
    """Return an error without what differs from run to run and helps no reader of a table."""
    error = error.removeprefix("isthmus: ").splitlines()[0]
    error = re.sub(r"\[\S*/gloo/\S+\] ", "", error)
    error = re.sub(r" \[?(\d+\.){3}\d+\]?:\d+", "", error)
    own, *others = error.split("; ")
    return "; ".join([own, *(text for text in others if not CONSEQUENCE.search(text))]).removesuffix(".")


def line(row: Row, outcome: Outcome) -> str:
    """Return a row of the page."""
    ranks = survivors(row, outcome)
    failed = sorted((rank for rank in ranks if rank.error), key=lambda rank: rank.seconds_to_error or 0)
    said = shortened(failed[0].error) if failed else "no error: all goes on"
    to_error = f"{max(rank.seconds_to_error or 0 for rank in failed):.1f}" if failed else "-"
    to_end = max((rank.seconds_to_end or float("inf") for rank in ranks), default=0)
    met = "no" if any(complaints(row, outcome)) else "yes"
    said += f" *({row.remark})*" if row.remark else ""
    cells = (described(row), operation(row), said, to_error, f"{to_end:.1f}", met)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def described(row: Row) -> str:
    """Return the first cell of a row of the page."""
    return row.name + (f" (rank {row.faulty_rank})" if row.faulty_rank != 3 else "")


def operation(row: Row) -> str:
    """Return the second cell of a row of the page."""
    others = [row.settings.get(f"ISTHMUS_{option}") for option in ("TIERS", "WEIGHTS")]
    settings = [row.settings.get("ISTHMUS_CODEC", DEFAULT), *filter(None, others)]
    return f"{row.operation.__name__.replace('_', ' ')} ({', '.join(settings)})"


def page(outcomes: dict[str, Outcome]) -> str:
    """Return the text of docs/faults.md."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=PAGE.parent, capture_output=True, text=True)
    versions = f"torch {torch.__version__}, packets of version {_C.PACKET_VERSION}"
    where = f"{platform.machine()}, {versions}, {next(iter(outcomes.values())).network}"
    machine = f"Measured on commit `{commit.stdout.strip() or 'unknown'}`, {where}."
    head = [
        "| fault | operation (codec) | error | s to error | s to end | as it should be |",
        "|---|---|---|---|---|---|",
    ]
    lines = [line(row, outcomes[row.name]) for row in ROWS]
    return "\n".join([INTRODUCTION, machine, "", *head, *lines, NOT_NAMED])


def main() -> int:
    """Run the table."""
    outcomes = {}
    failed = False
    with Harness() as harness:
        for row in ROWS:
            outcomes[row.name] = harness.run(row.name)
            lacking = list(complaints(row, outcomes[row.name]))
            failed = failed or bool(lacking)
            print(row.name, *(lacking or ["as it should be"]), sep="\n    ", flush=True)
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(page(outcomes))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
