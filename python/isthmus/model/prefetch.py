"""Lets FSDP2 gather each unit while the one before it computes, in forward passes as it does in backward passes.

In a forward pass FSDP2 gathers a unit when the unit is called, and waits for it at once: what the host waits for, the
model's launches wait for. One unit ahead, the GPU has a unit's computation meanwhile.

`set_modules_to_forward_prefetch` would gather a unit only behind the copy of the unit before it out of its gather. Here
it is gathered ahead as soon as the gather before is waited for, so that their exchanges follow each other.
"""

from __future__ import annotations

import logging
import weakref
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from isthmus.model.models import fsdp2_groups
from isthmus.torch_private.models import ParamGroup, gather_ahead, is_in_forward, modules_of, prefetches

logger = logging.getLogger("isthmus")


class Prefetch:
    """The order in which a model's forward passes gather its units. Refers to its modules weakly.

    The first pass shows the order, which is equal on all ranks. A pass in another order ends it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._first: list[weakref.ref[ParamGroup]] = []  # what the first pass has gathered
        self._next: dict[weakref.ref[ParamGroup], weakref.ref[ParamGroup]] | None = None  # None: no pass has shown it
        self._unused: dict[weakref.ref[ParamGroup], None] | None = None  # not waited for; None: there is no pass
        untraced: Any = torch.compiler.disable
        self._hooks = [
            model.register_forward_pre_hook(untraced(self.begin), prepend=True),
            model.register_forward_hook(untraced(self._ends), always_call=True),
        ]

    def begin(self, *_: Any) -> None:
        """Note that a forward pass begins."""
        self._first, self._unused = [], {}

    def gathers(self, unit: ParamGroup) -> bool:
        """Note that FSDP2 gathers `unit`. Returns whether waited() is to be called once that is waited for."""
        if self._unused is None or not is_in_forward(unit):
            return False
        if self._next is None:
            self._first.append(weakref.ref(unit))
            return False
        self._unused[weakref.ref(unit)] = None
        return True

    def waited(self, unit: ParamGroup) -> None:
        """Gather the unit that comes next, as a pass has waited for `unit`."""
        if self._next is None or self._unused is None:
            return
        self._unused.pop(weakref.ref(unit), None)
        following = self._next.get(weakref.ref(unit))
        next_unit = following() if following is not None else None
        if next_unit is not None and is_in_forward(unit):
            gather_ahead(next_unit)

    def end(self) -> None:
        """Let units be gathered when they are called, from now on."""
        for hook in self._hooks:
            hook.remove()
        self._next, self._unused = None, None

    def _ends(self, model: nn.Module, _inputs: Any, output: Any) -> None:
        if self._unused is None:  # the pass began before
            return
        unused = [unit for reference in self._unused if (unit := reference()) is not None]
        self._unused = None
        for unit in unused:  # a later pass would use weights of now
            module: Any = modules_of(unit)[0]
            module.unshard()
            module.reshard()
        if output is None:  # the pass raised an error
            return
        if self._next is None:
            is_repeated = len(set(self._first)) < len(self._first)  # then a unit has several next ones
            modules = (module for group in fsdp2_groups(model) for module in modules_of(group))
            if is_repeated or any(map(prefetches, modules)):
                self.end()
            else:
                self._next = dict(pairwise(self._first))
        elif unused:  # as in every other order
            logger.warning(
                "forward passes of a model use units of FSDP2 in different orders: from now on each unit is gathered "
                "when it is called, and not one ahead"
            )
            self.end()
