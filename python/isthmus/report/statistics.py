"""``isthmus.stats``: the statistics of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from isthmus.backends import backend_of

if TYPE_CHECKING:
    pass


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Statistics of this rank in `group` (default: all ranks) since it was made or `reset_stats` was called.

    Plain values: ``node_map``, ``node_map_source``, ``options``, ``calls`` (as they arrived from torch),
    ``collectives`` (of the two-tier path: calls, payload bytes by tier, seconds by phase), ``codec`` (counts of
    elements), ``weights`` (with ``weights="delta"``: gathers of parameters, those ``unchanged``, ``healed`` and
    ``whole`` by reason, and the memory of replicas), ``compressed_calls``, ``exact_calls`` (by reason),
    ``num_units``, ``residual_bytes``,
    ``scratch_bytes``, ``units``, ``devices`` (from ``collectives`` to ``units`` of each device alone: ``cpu``,
    ``cuda:0``), ``notes``. On a GPU seconds are counted with the option ``device_timings``.

    ``units`` has a dict for each unit: ``name``, ``collective``, ``num_elements``, ``calls``, ``codec``, its
    ``settings``, the ``reason`` for it where there is one, ``coded_elements`` and ``packet_bytes`` for other nodes,
    ``bits_per_element``, and ``relative_squared_error``: what the codec dropped over what it was given, as measured
    every ``error_interval`` reductions; None where it was not.
    """
    return backend_of(group).stats()


def reset_stats(group: dist.ProcessGroup | None = None) -> None:
    """Set the counters and seconds of `group` to zero. Units and their residuals stay."""
    backend_of(group).reset_stats()
