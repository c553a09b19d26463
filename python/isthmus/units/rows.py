"""Rows of embeddings that share groups of codec `quant` with other parameters or rows. See docs/choosing.md."""

from __future__ import annotations

import math

from torch import nn

from isthmus import native
from isthmus.backends import backends_of
from isthmus.units.layout import clean_name
from isthmus.units.models import Unit, groups_of
from isthmus.units.prepared import Prepared

#: Half a group: zeros that fill one come through as zeros.
_HALF_GROUP = 64


def noisy_rows(model: nn.Module, prepared: Prepared) -> str:
    """Return what to do about rows whose zero gradients get noise from their neighbours; "" if there are none."""
    options = [backend.options for backend in backends_of(groups_of(model))]
    options = [each for each in options if each.codec == "quant"]
    embeddings = {
        clean_name(f"{name}.weight".lstrip("."))
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    for unit in prepared.units:
        is_coded = any(native.load().unit_is_compressed(each.units, prepared.full_name(unit.name)) for each in options)
        for name in _noisy_in(unit, embeddings) if is_coded and not prepared.exact_reason(unit.name) else ():
            return (
                f"rows of {name} share groups of {2 * _HALF_GROUP} elements with others: where a token does not occur, "
                f'a gradient of zero gets some noise, of which Adam makes whole steps. units="!{unit.name}" leaves '
                f"the unit exact; a width that {_HALF_GROUP} divides, in a unit of its own, has no noise"
            )
    return ""


def _noisy_in(unit: Unit, embeddings: set[str]) -> list[str]:
    layout = unit.layout()
    noisy, begin = [], 0
    for parameter, elements in zip(layout.parameters, layout.section_elements, strict=True):
        width = math.prod(parameter.shape[1:]) // (1 if parameter.dim == 0 else layout.num_rows)
        if parameter.name in embeddings and (begin % _HALF_GROUP or width % _HALF_GROUP):
            noisy.append(f"{parameter.name} ({width} elements)")
        begin += elements
    return noisy
