"""Gradient scaling: residuals follow the loss scale, and skipped steps are undone."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus.base.backends import backends_of
from isthmus.model.models import groups_of, held_units

# Of each scaler, its models, and the groups that they are reduced over.
_Followers = weakref.WeakKeyDictionary[nn.Module, list[dist.ProcessGroup]]
_followers: weakref.WeakKeyDictionary[Any, _Followers] = weakref.WeakKeyDictionary()


def follow(scaler: Any, model: nn.Module) -> None:
    """Let the residuals of `model` follow the scale of `scaler`. Raises TypeError if `scaler` is no GradScaler."""
    if not hasattr(scaler, "get_scale") or not hasattr(scaler, "update"):
        raise TypeError(f"scaler: expected a GradScaler, got {type(scaler).__name__}")
    if scaler not in _followers:
        kind: Any = type(scaler)
        scaler.__class__ = _followed(kind)
        _followers[scaler] = weakref.WeakKeyDictionary()
    _followers[scaler][model] = groups_of(model)


@functools.cache
def _followed(kind: Any) -> Any:
    """Return a subclass of GradScaler that residuals follow. Its copies and pickles are of the original class."""

    class Followed(kind):  # type: ignore[misc]
        def update(self, new_scale: float | torch.Tensor | None = None) -> None:
            old = self.get_scale()
            super().update(new_scale)
            new = self.get_scale()  # on a GPU the host waits for it
            # If the scaler itself lowered the scale, a gradient was not finite.
            if self.is_enabled():
                _end_step(_followers[self], old, new, skipped=new_scale is None and new < old)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _, _, *state = super().__reduce_ex__(2)
            return object.__new__, (kind,), *state

    return Followed


def _end_step(followers: _Followers, old: float, new: float, *, skipped: bool) -> None:
    """Undo a step that was skipped, let residuals follow the loss scale, and begin the next step."""
    units = [unit for model in list(followers) for unit in held_units(model)]
    for backend in backends_of(group for groups in followers.values() for group in groups):
        if skipped:
            backend.skip_step(units)
        if not old or not new:  # nothing can be scaled back
            backend.clear_units(units)
        elif new != old:
            backend.scale_residuals(new / old, units)
        backend.begin_step(units=units)
