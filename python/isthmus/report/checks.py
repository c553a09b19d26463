"""What a check of the statistics finds: what was asked for and does not come, what was dropped, and who is behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.base import native
from isthmus.base.backends import backends_of
from isthmus.base.job import is_first_rank, this_job, warn_once
from isthmus.model.collectives import replaced_collectives
from isthmus.model.prepare import prepared_by_programs
from isthmus.report import advice
from isthmus.report.statistics import sum_of
from isthmus.torch_private.groups import all_groups

if TYPE_CHECKING:
    from isthmus import _C

_MOST_NAMES = 5

GroupStats = tuple["_C.Backend", dict[str, Any]]  # with its `isthmus.stats`

#: Seconds by tier and rank, as in `isthmus.stats`.
Waits = Mapping[str, Mapping[int, float]]

TIERS = {"inter": "between nodes", "intra": "within the node", "flat": "in one tier"}
# A rank is behind the others if this share of the time is spent on waiting for it, and so many times as much as for any
# other rank of the tier.
_SHARE = 0.1
_TIMES = 2.0


def warn_of_findings(is_first: bool) -> None:
    """Warn of what the groups of this process show. is_first: and of what they were asked for and have not done so far.

    That they compress gradients: the most frequent reason for which those of backward passes stayed exact. What the
    options exclude, and exact first steps (``dense_steps``), are no such reason. That they send differences of weights.
    And that they treat the units that globs name: a mistyped one would change nothing, or leave everything exact. In
    each check: that FSDP2 still has the collectives that it was given.
    """
    groups = [(backend, backend.stats()) for backend in backends_of(all_groups())]
    if not groups:  # torchft's groups alone
        return
    if is_first and is_first_rank():
        warn_once(_gradients(groups), "gradients")
        warn_once(_weights(groups), "weights")
        warn_once(_unmatched_globs(groups), "units")
        for text in _unmatched_by_models():
            warn_once(text)
    warn_of_replaced_collectives()
    # On the rank that met residuals that were dropped after gradients far larger than before.
    notes = (advice.on_spikes(found["codec"]["spikes"]) for _, found in groups)
    warn_once(next(filter(None, notes), ""), "spikes")
    late = behind_since_last_check([found for _, found in groups])
    if not is_first:  # ranks begin their first steps at different times
        warn_once(late, "behind")


def warn_of_replaced_collectives() -> None:
    """Say on rank 0 which units of FSDP2 have lost Isthmus's collectives to others."""
    if is_first_rank():
        warn_once(advice.on_replaced(replaced_collectives()))


def _gradients(groups: Sequence[GroupStats]) -> str:
    asked = [(backend, found) for backend, found in groups if backend.options.codec != "none"]
    if any(found["compressed_calls"] for _, found in asked):
        return ""
    reasons = [
        reason
        for backend, found in asked
        for reason in advice.on_exact(found["exact_calls"], backend.options.min_elements)
    ]
    return f"no gradient was compressed in the first two steps: {max(reasons)[1]}" if reasons else ""


def _weights(groups: Sequence[GroupStats]) -> str:
    asked = [found for backend, found in groups if backend.options.sends_differences]
    if not asked or any(found["weights"]["gathers"] for found in asked):
        return ""
    return advice.ON_PLAIN_WEIGHTS


def _unmatched_globs(groups: Sequence[GroupStats]) -> str:
    names = sorted(
        {unit["name"] for _, found in groups for unit in found["units"] if unit["collective"] != "all_gather"}
    )
    asked = dict.fromkeys(("option ", backend.options.units) for backend, _ in groups)
    return "; ".join(filter(None, (_unmatched(what, units, names) for what, units in asked)))


def _unmatched_by_models() -> Iterator[str]:
    """What globs of `isthmus.prepare` no unit of the model matches."""
    for prepared in prepared_by_programs():
        what = f"isthmus.prepare(name={prepared.name!r}): " if prepared.name else "isthmus.prepare: "
        yield _unmatched(what, prepared.full_patterns, prepared.full_names())


def _unmatched(what: str, units: str, names: Sequence[str]) -> str:
    """Which globs match none of the names, "" if each matches one. Names are shown as globs."""
    core = native.load()
    globs = [glob for glob in core.split_globs(units) if not any(_matches(glob, name) for name in names)]
    if not names or not globs:
        return ""
    shown = ", ".join(map(core.glob_of, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{what}units={units}: no unit matches {', '.join(globs)}; there are {len(names)}: {shown}"


def _matches(glob: str, name: str) -> bool:
    matches: bool = native.load().unit_is_compressed(glob.removeprefix("!"), name)
    return matches


def behind_since_last_check(stats: Sequence[dict[str, Any]]) -> str:
    """Return which rank has been behind the others since the last call, by each group's statistics; "" if none was."""
    job = this_job()
    waits = sum_of([found["peer_waits_s"] for found in stats])
    now_s = time.monotonic()
    since = {
        tier: {rank: seconds - job.peer_waits_s.get(tier, {}).get(rank, 0.0) for rank, seconds in by_rank.items()}
        for tier, by_rank in waits.items()
    }
    found = "; ".join(behind(since, now_s - job.checked_at_s))
    job.peer_waits_s, job.checked_at_s = waits, now_s
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
