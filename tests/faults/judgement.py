"""What the outcome of a row lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from faults.harness import Outcome, RankOutcome
from faults.rows import GRACE_S, TIMEOUT_S, Row
from support.limits import longest

LIMIT_S = TIMEOUT_S + GRACE_S


def complaints(row: Row, outcome: Outcome) -> Iterator[str]:
    """Yield what is not as it should be, in words."""
    if outcome.leftovers:
        yield f"left behind: {outcome.leftovers}"
    for rank in outcome.ranks:
        expected = row.expected if rank.rank != row.faulty_rank else row.faulty_expected
        if expected is not None:
            for complaint in _complaints_of(rank, expected):
                yield f"rank {rank.rank} {complaint}: {rank.error or rank.log}"


def _complaints_of(rank: RankOutcome, expected: tuple[str, ...]) -> Iterator[str]:
    if rank.status != 0 or rank.seconds_to_end is None:
        yield f"ended with {rank.status}"
    elif rank.seconds_to_end > longest(LIMIT_S):
        yield f"ended after {rank.seconds_to_end:.1f} s"
    if rank.error_type != ("DistBackendError" if expected else ""):
        yield f"raised {rank.error_type or 'nothing'}"
    for pattern in expected:
        if not re.search(pattern, rank.error):
            yield f"does not say {pattern}"
