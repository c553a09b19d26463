"""Checks of collectives' results: exact where they must be, within the codec's contract where they may lose."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

#: More parts than this have too many subsets to try.
MAX_SUBSET_PARTS = 8


def num_different(result: Tensor, expected: Tensor) -> int:
    """Elements that are not equal bit for bit (as values: NaN differs from everything)."""
    return int((result != expected).sum())


def num_outside_subsets(result: Tensor, own: Tensor, parts: Sequence[Tensor], relative_tolerance: float) -> int:
    """Elements of `result` that are not `own` plus some of `parts`, each taken whole or not at all.

    That is the contract of tagc in the first step of a unit: of every piece an element is either sent as it is or kept
    back for later steps. Tolerance is relative to the sum of magnitudes.
    """
    if len(parts) > MAX_SUBSET_PARTS:
        raise ValueError(f"{len(parts)} parts: expected at most {MAX_SUBSET_PARTS}")
    wide = result.double()
    nearest = torch.full_like(wide, float("inf"))
    for taken in product((0.0, 1.0), repeat=len(parts)):
        candidate = own.double()
        for factor, part in zip(taken, parts, strict=True):
            candidate = candidate + factor * part.double()
        nearest = torch.minimum(nearest, (wide - candidate).abs())
    magnitude = own.double().abs() + sum(part.double().abs() for part in parts)
    return int((~(nearest <= relative_tolerance * magnitude)).sum())


def num_outside_kept_subsets(result: Tensor, own: Tensor, parts: Sequence[Tensor], relative_tolerance: float) -> int:
    """Elements of `result` that are neither zero nor within the contract of `num_outside_subsets`.

    That is the contract of the first all-reduce: its owner encodes the sum once more, of which each element is sent as
    it is or kept back.
    """
    sent = result != 0
    return num_outside_subsets(result[sent], own[sent], [part[sent] for part in parts], relative_tolerance)


def relative_error(result: Tensor, exact: Tensor) -> float:
    """L2 distance from the exact result, as a share of its norm."""
    norm = float(exact.double().norm())
    distance = float((result.double() - exact.double()).norm())
    return distance / norm if norm else distance
