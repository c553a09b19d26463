"""Looks at the statistics after some of the program's steps, and warns of what they show."""

from __future__ import annotations

from typing import Any

import torch

from isthmus.backends import backends_of
from isthmus.job import is_first_rank, this_job, warn_once
from isthmus.torch_private.groups import all_groups, is_in_backward_pass

_FIRST_LOOK = 2  # steps: they show whether a group does what it was asked for
_MOST_STEPS = 1000  # between two looks; before that, each comes when the steps have doubled


def stepped(*_: Any) -> None:
    """Count a step of an optimizer, and look if it is time to. Torch calls it after each step.

    A step in a backward pass is one parameter's, called from a hook. Steps before the first collective do not count.
    Statistics are read at looks alone, as a GPU's host waits for them.
    """
    if torch.compiler.is_compiling() or is_in_backward_pass():
        return
    job = this_job()
    job.steps += 1
    if job.steps < job.next_look:
        return
    is_first = job.steps == _FIRST_LOOK
    if is_first and not any(backend.stats()["calls"] for backend in _backends()):
        job.steps = 0
        return
    job.next_look += min(job.next_look, _MOST_STEPS)
    _look(is_first)


def _backends() -> list[Any]:
    return list(backends_of(all_groups()))


def _look(is_first: bool) -> None:
    if not _backends():  # torchft's groups alone
        return
    from isthmus.report.missing import missing, spikes
    from isthmus.report.waits import behind_since_last_look

    if is_first and is_first_rank():
        for subject, text in missing().items():
            warn_once(text, subject)
    warn_once(spikes(), "spikes")  # on the rank that met one
    behind = behind_since_last_look()
    if not is_first:  # ranks begin their first steps at different times
        warn_once(behind, "behind")
