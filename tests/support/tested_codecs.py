"""The codecs that tests run with. The default is what a user gets who sets nothing: when it changes, the tests follow.

Gradients of `carried` cross between nodes without any loss, whatever the codec: what comes out is known to the bit.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

import isthmus
from isthmus.base import native as _native

Options = dict[str, Any]


def _default_codec() -> str:
    ours = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ISTHMUS_")}
    try:
        codec: str = isthmus.Options().codec
    finally:
        os.environ.update(ours)
    return codec


DEFAULT = _default_codec()
#: Options by what tests call them. Nothing is set for the default. The codec that keeps residuals has settings by
#: which small units leave some.
CODECS: dict[str, Options] = {
    "default": {},
    "none": {"codec": "none"},
    "tagc": {"codec": "tagc", "sparsity": 0.5, "ratio": 1},
}
assert {DEFAULT, *CODECS} - {"default"} == set(_native.load().codecs()), "every codec is tested"
#: What those above lose of a gradient that crosses once, as a share of its energy: quant by docs/quant.md, tagc
#: what the lesser half of normally distributed elements has.
ERRORS = {"default": {"quant": 0.0117}[DEFAULT], "tagc": 0.0713}
LOSSY = tuple(name for name in CODECS if name != "none")


def environment(options: Mapping[str, Any]) -> dict[str, str]:
    return {f"ISTHMUS_{name.upper()}": str(value) for name, value in options.items()}


#: At most one of so many neighbours is not zero in `carried`: a group of codec quant holds fewer elements.
SPACING = 512
#: A single value is spread evenly over its group by quant's rotation, to the level 1/2, 3/2, 5/2 or 127.5 of 1 to 8
#: bits. This is a multiple of each, by factors that the bfloat16 of a scale holds; so are its doubles.
UNIT_VALUE = 255.0


def carried(num_elements: int, rank: int, num_ranks: int, step: int = 0) -> torch.Tensor:
    """Return a rank's gradient of a step which crosses without any loss, whatever the codec.

    It holds few values. In most places one rank has one, in others two neighbouring ranks have the same. It is on
    torch's default device, and made on the CPU: a fake GPU lacks operators.
    """
    places = torch.arange(41 * step % SPACING, num_elements, SPACING, device="cpu")
    numbers = torch.arange(len(places), device="cpu")
    turn = (numbers - rank) % num_ranks
    present = (turn == 0) | ((turn == 1) & (numbers % 3 == 0))
    values = UNIT_VALUE * (1 + numbers // 2 % 2) * (1 - 2 * (numbers // num_ranks % 2))
    gradient = torch.zeros(num_elements, device="cpu")
    gradient[places] = torch.where(present, values, 0)
    return gradient.to(torch.get_default_device())
