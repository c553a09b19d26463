"""The codecs that tests run with. The default is what a user gets who sets nothing: when it changes, the tests follow.

Gradients of `carried` cross between nodes without any loss, whatever the codec: what comes out is known to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.profiler import record_function

import isthmus

Options = dict[str, Any]


def _default_codec() -> str:
    ours = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ISTHMUS_")}
    try:
        codec: str = isthmus.Options().codec
    finally:
        os.environ.update(ours)
    return codec


DEFAULT = _default_codec()
#: Options by what tests call them. Nothing is set for the default. Of the codecs that keep residuals, settings by which
#: small units leave some.
CODECS: dict[str, Options] = {
    "default": {},
    "none": {"codec": "none"},
    "tagc": {"codec": "tagc", "sparsity": 0.5, "ratio": 1},
    "sparse": {"codec": "sparse", "sparsity": 0.5},
}
#: Of those above: what is lost of a gradient that crosses once, as a share of its energy. Of quant by docs/quant.md; of
#: the others what the lesser half of normally distributed elements has.
ERRORS = {"default": {"quant": 0.0115}[DEFAULT], "tagc": 0.0713, "sparse": 0.0713}
LOSSY = ("default", "tagc", "sparse")
KEEP_RESIDUALS = ("tagc", "sparse")


def environment(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the variables that set them."""
    return {f"ISTHMUS_{name.upper()}": str(value) for name, value in options.items()}


#: Neighbours of which at most one is not zero in `carried`: a multiple of every size of a group of codec `quant`.
SPACING = 512
#: A single value in a group is spread evenly by quant's rotation, to the level 1/2, 3/2, 5/2 or 127.5 of its 1 to 8
#: bits: a multiple of this is a multiple of each, with scales that bfloat16 holds. Sums of a few stay so.
UNIT_VALUE = 255.0


def carried(num_elements: int, rank: int, step: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a rank's gradient of a step, of which every codec sends all: few values, all ranks' in the same places."""
    places = torch.arange(step * 37 % SPACING, num_elements, SPACING)
    values = torch.tensor([1, -1, 1])[(places // SPACING + rank) % 3]
    gradient = torch.zeros(num_elements, dtype=dtype)
    gradient[places] = (UNIT_VALUE * values).to(dtype)
    return gradient


def label(unit: str) -> Any:
    """Return a context in which a reduction is the gradient's of a unit, as FSDP labels it."""
    return record_function(f"FSDP::post_backward_reduce ({unit})")
