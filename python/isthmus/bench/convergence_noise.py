"""What takes the place of a codec: noise, to see which elements' errors cost validation loss, or nothing at all."""

import math

import torch
from torch import Tensor
from torch.nn import functional

#: Of the piece: the relative squared error of codes of 2 bits (docs/quant.md).
RELATIVE_SQUARED_ERROR = 0.1188
_GROUP_ELEMENTS = 128


def add_noise(gradient: Tensor, owned_part: int, num_parts: int, kind: str, generator: torch.Generator) -> Tensor:
    """`gradient`, flat, with normal noise in all but one of its equal parts: what its node owns crosses no link.

    kind: "spread" is as large for all elements of a group of 128 neighbours, as the error of rotated codes is; "alike"
    is proportional to each element. Both have the same squared error. "dropped": nothing is sent, and each node takes
    what it owns for the mean of all. Raises ValueError for another kind.
    """
    parts = gradient.float().view(num_parts, -1)
    if kind == "dropped":
        kept = torch.zeros_like(parts)
        kept[owned_part] = num_parts * parts[owned_part]
        return kept.flatten().to(gradient.dtype)
    if kind == "spread":
        size = _root_mean_squares(parts)
    elif kind == "alike":
        size = parts.abs()
    else:
        raise ValueError(f"noise '{kind}': expected spread, alike or dropped")
    noise = math.sqrt(RELATIVE_SQUARED_ERROR) * size * torch.randn(parts.shape, generator=generator)
    noise[owned_part] = 0
    return (parts + noise).flatten().to(gradient.dtype)


def _root_mean_squares(parts: Tensor) -> Tensor:
    """Of each element's group."""
    num_elements = parts.shape[1]
    padded = functional.pad(parts, (0, -num_elements % _GROUP_ELEMENTS))
    groups = padded.view(len(parts), -1, _GROUP_ELEMENTS)
    of_groups = groups.square().mean(dim=2, keepdim=True).sqrt().expand_as(groups)
    return of_groups.reshape(len(parts), -1)[:, :num_elements]
