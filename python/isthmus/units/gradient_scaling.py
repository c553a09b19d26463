"""Gradient scaling: residuals follow the loss scale, and skipped steps are counted."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from isthmus.backends import isthmus_backend
from isthmus.units.models import groups_of

_followers: weakref.WeakKeyDictionary[Any, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()


def follow(scaler: Any, model: nn.Module) -> None:
    """Let the residuals of `model` follow the scale of `scaler`. Raises TypeError if it is no GradScaler."""
    if not hasattr(scaler, "get_scale") or not hasattr(scaler, "update"):
        raise TypeError(f"scaler: expected a GradScaler, got {type(scaler).__name__}")
    if scaler not in _followers:
        kind: Any = type(scaler)
        scaler.__class__ = _followed(kind)
        _followers[scaler] = weakref.WeakSet()
    _followers[scaler].add(model)


@functools.cache
def _followed(kind: Any) -> Any:
    """Return a kind of GradScaler that residuals follow. What is copied or pickled from it is of the old kind."""

    class Followed(kind):  # type: ignore[misc]
        def update(self, new_scale: float | torch.Tensor | None = None) -> None:
            old = self.get_scale()
            super().update(new_scale)
            new = self.get_scale()  # on a GPU the host waits for it
            # A scale that goes down by itself was backed off, because a gradient was not finite.
            _end_step(_followers[self], old, new, skipped=new_scale is None and new < old)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _, _, *state = super().__reduce_ex__(2)
            return object.__new__, (kind,), *state

    return Followed


def _end_step(models: Iterable[nn.Module], old: float, new: float, *, skipped: bool) -> None:
    """Let residuals follow the loss scale, and count a step."""
    groups = dict.fromkeys(group for model in models for group in groups_of(model))
    for backend in filter(None, map(isthmus_backend, groups)):
        if skipped:
            backend.count_skipped_step()
        else:
            backend.count_step()
        if new == 0:
            backend.clear_units()  # nothing can be scaled back from zero
        elif new != old:
            backend.scale_residuals(new / old)
