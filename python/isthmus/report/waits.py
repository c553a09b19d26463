"""For which ranks this one waits, and whether one of them is behind the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from isthmus.job import this_job
from isthmus.report.statistics import named_backends, sum_of

#: Seconds by tier and rank, as in `isthmus.stats`.
Waits = Mapping[str, Mapping[int, float]]

TIERS = {"inter": "between nodes", "intra": "within the node", "flat": "in one tier"}
# A rank is behind the others if this share of the time is spent on waiting for it, and so many times as much as for any
# other rank of the tier.
_SHARE = 0.1
_TIMES = 2.0


def behind_since_last_look() -> str:
    """Return which rank has been behind the others since the last call, and what to do; "" if none was."""
    job = this_job()
    waits = sum_of([backend.stats()["peer_waits_s"] for backend in named_backends().values()])
    now_s = time.monotonic()
    since = {
        tier: {rank: seconds - job.peer_waits_s.get(tier, {}).get(rank, 0.0) for rank, seconds in by_rank.items()}
        for tier, by_rank in waits.items()
    }
    found = "; ".join(behind(since, now_s - job.looked_at_s))
    job.peer_waits_s, job.looked_at_s = waits, now_s
    return found


def behind(waits: Waits, seconds: float) -> Iterator[str]:
    """Name each tier's rank that is behind all others, by what was waited for in so many seconds.

    With one other rank in a tier nothing tells a rank that comes late from a slow link, so none is named.
    """
    for tier, by_rank in waits.items():
        longest = sorted(by_rank, key=by_rank.__getitem__, reverse=True)
        if len(longest) < 2:
            continue
        first_s, second_s = by_rank[longest[0]], max(0.0, by_rank[longest[1]])
        if first_s >= _SHARE * seconds and first_s >= _TIMES * second_s:
            yield (
                f"{first_s:.1f} of the last {seconds:.1f} s were spent on waiting for rank {longest[0]} "
                f"{TIERS[tier]}, and at most {second_s:.1f} s for any other rank there: it comes late, or its link is "
                "slow. If isthmus.summary() on that rank names another one, look there"
            )


def in_words(waits: Waits, most: int = 4) -> str:
    """For whom the most was waited, "3.10 s for rank 2, 0.20 s for rank 1 between nodes"; "" if for nobody."""
    parts = []
    for tier, words in TIERS.items():
        by_rank: dict[int, float] = dict(waits[tier])
        longest = sorted(by_rank, key=by_rank.__getitem__, reverse=True)[:most]
        if longest:
            parts.append(", ".join(f"{by_rank[rank]:.2f} s for rank {rank}" for rank in longest) + f" {words}")
    return "; ".join(parts)
