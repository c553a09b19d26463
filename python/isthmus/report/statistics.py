"""``isthmus.stats``: the statistics of a process group, or of all groups of the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from isthmus.base.backends import backend_of, backends_of
from isthmus.model.collectives import replaced_collectives
from isthmus.model.units import Unit, prepared_units
from isthmus.report import advice
from isthmus.torch_private.groups import all_groups

if TYPE_CHECKING:
    from isthmus import _C

#: Numbers, or dicts of them, that are added up over groups.
_COUNTS = (
    "calls",
    "world",
    "collectives",
    "codec",
    "weights",
    "peer_waits_s",
    "compressed_calls",
    "exact_calls",
    "num_units",
    "residual_bytes",
    "dropped_residuals",
    "scratch_bytes",
    "ran_s",
    "waited_s",
    "devices",
)


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Statistics of this rank in `group` since it was made or `reset_stats` was called.

    Plain values: ``node_map``, ``node_map_source``, ``options``, ``calls`` (as they arrived from torch), ``world``
    (those that the world backend carries, by call: ``calls``, and the ``sent_bytes`` and ``received_bytes`` of payload
    that must cross the border of this rank's node, this rank's share: docs/operate.md says which),
    ``collectives`` (of the two-tier path: calls, payload bytes by tier, seconds by phase), ``codec`` (counts of
    elements), ``weights`` (with ``weights="delta"``: gathers of parameters, those ``unchanged``, ``healed``, by node
    ``differing`` and by reason ``whole``, and the memory of replicas), ``peer_waits_s`` (by tier, on the CPU: for how
    long this rank waited for messages of each other one), ``compressed_calls``, ``exact_calls`` (by reason),
    ``num_units``, ``residual_bytes``, ``scratch_bytes``, ``ran_s`` (seconds of calls in two tiers on the CPU),
    ``waited_s`` (those for which callers were blocked by them in ``Work.wait()``), ``units``, ``devices`` (from
    ``collectives`` to ``units`` of each device alone: ``cpu``, ``cuda:0``), ``one_tier`` (why the group has no two
    tiers, "" if it has), ``notes``. On a GPU seconds are counted with the option ``device_timings``.

    ``units`` has a dict for each unit: ``name``, ``collective``, ``num_elements``, ``dtype``, ``calls``, ``codec``, its
    ``settings``, the ``reason`` for it where there is one, ``coded_elements`` and ``packet_bytes`` for other nodes,
    ``bits_per_element``, and ``relative_squared_error``: what the codec dropped over what it was given, as measured
    every ``error_interval`` reductions; None where it was not.

    Without `group` the figures are those of all groups of Isthmus that this rank is in, added up, and ``groups`` has
    each of them by its name: HSDP reduces over a group of its own, and the default group then stays empty. Each unit
    has its ``group``, and each of the ``notes`` begins with one. ``node_map``, ``node_map_source`` and ``options`` are
    the default group's, or the first one's where that is not Isthmus's.

    Raises ValueError where there is no group of Isthmus, or `group` is one that this rank is not in.
    """
    if group is not None:
        return _stats(backend_of(group))
    found = {name: _stats(backend) for name, backend in named_backends().items()}
    return added(found) | {"groups": found}


def _stats(backend: _C.Backend) -> dict[str, Any]:
    """The statistics of a backend, with what Python knows of its units."""
    found: dict[str, Any] = backend.stats()

    def is_its(unit: Unit) -> bool:
        return backend in backends_of(unit.process_groups)

    reasons = Counter(unit.kept for unit in prepared_units.values() if unit.kept and is_its(unit))
    replaced = ((unit, others) for unit, others in replaced_collectives() if is_its(unit))
    found = with_notes(found)
    found["notes"] += filter(None, [*advice.on_kept(reasons), advice.on_replaced(replaced)])
    return found


def with_notes(found: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a backend, which may be gone, with what to do about them."""
    has_two_tiers = not found["one_tier"]
    notes = [
        "shut down" if has_two_tiers and "cpu" not in found["devices"] else "",
        *(note for _, note in advice.on_exact(found["exact_calls"]) if has_two_tiers),
        advice.on_spikes(found["codec"]["spikes"]),
    ]
    return found | {"notes": [note for note in notes if note]}


def reset_stats(group: dist.ProcessGroup | None = None) -> None:
    """Set the counters and seconds of `group` (default: all of the process) to zero. Units and residuals stay."""
    backends: Iterable[_C.Backend] = named_backends().values() if group is None else [backend_of(group)]
    for backend in backends:
        backend.reset_stats()


def named_backends() -> dict[str, _C.Backend]:
    """Return the backends of all groups of Isthmus that this rank is in, by names that differ.

    The group that `isthmus.attach` made beside another stands under the name of the other. Raises ValueError where
    there is none.
    """
    found: dict[str, _C.Backend] = {}
    for backend, group in backends_of(all_groups()).items():
        found[group_name(group.group_desc, group.group_name, found)] = backend
    if not found:
        backend_of(None)  # says what there is instead
        raise ValueError("this process has no process group of isthmus")
    return found


def group_name(description: str, unique_name: str, taken: Container[str]) -> str:
    """Torch's description of a group ("mesh_replicate"), with its unique name where that is missing or `taken`."""
    if description == "default_pg":
        return "default"
    if not description or description == "undefined":
        return f"group {unique_name}"
    return f"{description} ({unique_name})" if description in taken else description


def added(groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Add up the statistics of groups, each by its name."""
    each = list(groups.values())
    first = groups.get("default", each[0])
    total = {name: first[name] for name in ("node_map", "node_map_source", "options")}
    for name in _COUNTS:
        total[name] = sum_of([one[name] for one in each])
    total["one_tier"] = first["one_tier"] if all(one["one_tier"] for one in each) else ""
    total["skipped_steps"] = max(one["skipped_steps"] for one in each)
    total["units"] = [unit | {"group": name} for name, one in groups.items() for unit in one["units"]]
    total["notes"] = [f"{name}: {note}" for name, one in groups.items() for note in one["notes"]]
    return total


def sum_of(parts: Sequence[Any]) -> Any:
    """The sum of numbers, or of dicts key by key; lists one after the other."""
    if isinstance(parts[0], dict):
        keys = dict.fromkeys(key for part in parts for key in part)
        # A step that was skipped was so in every group.
        return {
            key: (max if key == "skipped_steps" else sum_of)([part[key] for part in parts if key in part])
            for key in keys
        }
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return sum(parts)
