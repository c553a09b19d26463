"""Serves all groups of a process: the native module's calls, checks of the statistics, and the summary at its exit."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from isthmus.base import native
from isthmus.base.backends import backends_of
from isthmus.base.error_reports import log_to_stderr
from isthmus.base.job import optimizer_stepped, this_job
from isthmus.base.variables import unknown_variables
from isthmus.torch_private.groups import all_groups, is_in_backward_pass

if TYPE_CHECKING:
    from isthmus import _C

logger = logging.getLogger("isthmus")

_FIRST_CHECK = 2  # steps: they show whether a group does what it was asked for
_MOST_STEPS = 1000  # between two checks; before that, each comes when the steps have doubled

_ready_in_process = 0


def set_up(options: _C.Options, rank: int, split: Callable[..., _C.Backend]) -> None:
    """Set up what this process needs. rank: this rank in the new group. split: see set_split_function()."""
    global _ready_in_process
    if logger.level != logging.getLevelName(options.log.upper()):  # to set it costs much
        logger.setLevel(options.log.upper())
    log_to_stderr()
    if _ready_in_process != os.getpid():
        _ready_in_process = os.getpid()
        core = native.load()
        core.set_split_function(split)
        register_optimizer_step_post_hook(_stepped)
        core.set_shutdown_listener(_keep_last_stats)
        core.set_pass_function(lambda: _units().pass_begins())
        core.set_fsdp_caller(lambda *arguments: _units().fsdp_caller(*arguments))
        core.set_weights_caller(lambda backend: _units().weights_caller(backend))
        atexit.register(_shut_down, os.getpid())
        variables = [variable for _, variable, *_ in core.option_fields()]
        for name, meant in unknown_variables(os.environ, variables).items() if rank == 0 else ():
            told = f": did you mean {meant}?" if meant else ""
            logger.warning("the environment variable %s is none of isthmus's and changes nothing%s", name, told)


def _units() -> ModuleType:
    # At the first pass, not when `import torch` registers: it imports DTensor, for seconds.
    from isthmus.model import automatic

    return automatic


def _stepped(optimizer: Optimizer, *_: Any) -> None:
    """Note whose step it was, count it, and check the statistics if it is time to. Torch calls it after each step.

    A step in a backward pass is one parameter's, called from a hook. Steps before the first collective do not count.
    Statistics are read at checks alone, as a GPU's host waits for them.
    """
    if torch.compiler.is_compiling():
        return
    optimizer_stepped(optimizer)
    if is_in_backward_pass():
        return
    job = this_job()
    job.steps += 1
    if job.steps < job.next_check:
        return
    is_first = job.steps == _FIRST_CHECK
    if is_first and not any(backend.stats()["calls"] for backend in backends_of(all_groups())):
        job.steps = 0
        if job.hands_out_collectives:
            from isthmus.report.checks import warn_of_replaced_collectives

            warn_of_replaced_collectives()
        return
    job.next_check += min(job.next_check, _MOST_STEPS)
    from isthmus.report.checks import warn_of_findings  # it imports DTensor, for seconds

    warn_of_findings(is_first)


# The statistics of groups that were shut down, by name; kept if rank 0 logs a summary at its exit.
_last_stats: dict[str, dict[str, Any]] = {}


def _keep_last_stats(description: str, unique_name: str, found: dict[str, Any]) -> None:
    """Keep a group's statistics. Called by the native module when torch shuts down the group."""
    if logger.isEnabledFor(logging.INFO) and dist.is_initialized() and dist.get_rank() == 0:
        from isthmus.report.statistics import group_name, with_notes

        _last_stats[group_name(description, unique_name, _last_stats)] = with_notes(found)


def _log_summary() -> None:
    """Log what crossed between nodes in this process, on rank 0 with log="info" or "debug"."""
    for backend, group in backends_of(all_groups()).items():
        _keep_last_stats(group.group_desc, group.group_name, backend.stats())
    if any(found["calls"] for found in _last_stats.values()):
        from isthmus.report.statistics import added
        from isthmus.report.summary import summary_lines

        logger.info("%s", "\n".join(summary_lines(added(_last_stats))))


def _shut_down(process: int) -> None:
    """Stop the threads of all groups before the interpreter exits. A forked child has no such threads."""
    if os.getpid() == process:
        try:
            _log_summary()
        except Exception:  # a failed summary must not make the program fail
            logger.warning("no summary", exc_info=True)
        native.load().shutdown_all()
