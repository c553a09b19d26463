"""Numbers the owners of units: FSDP2's and FSDP1's objects, DDP's modules, DTensors.

The native module keeps the state of a unit with the number of its owner, and frees its memory once the owner is gone.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import MutableMapping
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.torch_private.models import handle_of
from isthmus.units.models import ddp_modules, fsdp2_groups

_numbers = itertools.count(1)
_number_of: MutableMapping[Any, int] = WeakIdKeyDictionary()


def number_of(owner: Any) -> int:
    """Return the number of a unit's owner, which this process never uses again."""
    number: int | None = _number_of.get(owner)
    if number is None:
        number = _number_of[owner] = next(_numbers)
        weakref.finalize(owner, native.load().forget_owner, number).atexit = False
    return number


def living() -> set[int]:
    """Return the numbers of all living owners that reduced, or may reduce, a unit."""
    return set(_number_of.values())


def owners_of(model: nn.Module) -> set[int]:
    """Return the numbers of the owners that reduce gradients of `model`."""
    reducers: list[Any] = [*fsdp2_groups(model), *filter(None, map(handle_of, model.modules()))]
    reducers += [module for _, module in ddp_modules(model)]
    reducers += [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return {number_of(reducer) for reducer in reducers}
