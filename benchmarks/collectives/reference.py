"""Codec quant in ten lines, with signs of its own: how far from the sum results of such codes are."""

import torch
from torch import Generator, Tensor

_GROUP = 128
_LEAST_SAMPLE = 1 << 20  # elements, so that the worst of a few groups is known as well
#: Roots of the mean square between two levels, by bits: docs/quant.md.
_STEPS = {1: 1.596, 2: 0.9957, 3: 0.5860, 4: 0.3352}


def errors_of_codes(pieces: list[Tensor], bits: int, again: bool) -> tuple[float, float, int]:
    """The worst error of an element in the sum of what arrives of `pieces`, and the worst mean square of all of them.

    pieces: float32, one a sender, of one size. again: the sum is encoded once more. The third value is the number of
    groups that have a scale of their own: their errors are independent. Elements in no group arrive exactly.
    """
    num_elements = len(pieces[0])
    num_groups = num_elements // _GROUP
    if num_groups == 0:
        return 0.0, 0.0, 0
    copies = -(-_LEAST_SAMPLE // num_elements)
    draws = Generator().manual_seed(0)  # the same bounds in each run
    groups = [piece[: num_groups * _GROUP].view(-1, _GROUP).repeat(copies, 1) for piece in pieces]
    arrived = torch.stack([_arrives(rows, bits, draws) for rows in groups]).sum(0)
    errors = (_arrives(arrived, bits, draws) if again else arrived) - torch.stack(groups).sum(0)
    mean_squares = errors.view(copies, -1).square().mean(1) * (num_groups * _GROUP / num_elements)
    return float(errors.abs().max()), float(mean_squares.max()), num_groups


def _arrives(rows: Tensor, bits: int, draws: Generator) -> Tensor:
    signs = torch.randint(2, rows.shape, generator=draws).float() * 2 - 1
    values, centre = _hadamard(rows * signs), (2**bits - 1) / 2
    step = _STEPS[bits] * values.square().mean(1, keepdim=True).sqrt()
    levels = (values / step + centre).nan_to_num(centre).clamp(0, 2 * centre).round() - centre
    scale = values.square().sum(1, keepdim=True) / (values * levels).sum(1, keepdim=True)
    arrived: Tensor = _hadamard(levels) * signs * scale.nan_to_num(0) / _GROUP
    return arrived


def _hadamard(rows: Tensor) -> Tensor:
    """Of each row, without the factor 1 / sqrt(128)."""
    half = 1
    while half < _GROUP:
        first, second = rows.reshape(-1, 2, half).unbind(1)
        rows = torch.stack((first + second, first - second), 1)
        half *= 2
    return rows.reshape(-1, _GROUP)
