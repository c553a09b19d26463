"""`isthmus bench bias`: how much of what crosses between nodes arrives, and of what stays, with codec quant."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

import isthmus
from isthmus._C import SimulatedNodes

_BITS = (4, 3, 2, 1)
_SCALES = ("least_error", "unbiased")
_COLLECTIVES = ("reduce-scatter", "all-reduce")


@dataclass(frozen=True)
class Bias:
    """What two nodes' normally distributed gradients come to: a sum of both, each times a factor, and an error."""

    collective: str
    scale: str
    bits: int
    #: Of what an element's owner has itself, and of what the other node sent it: 1 is no bias.
    own_slope: float
    foreign_slope: float
    #: Relative squared error of the sum.
    error: float


def measure_biases(num_elements: int, num_steps: int) -> Iterator[Bias]:
    """Every collective, scale and width; over so many reductions of so many elements."""
    for collective in _COLLECTIVES:
        for scale in _SCALES:
            for bits in _BITS:
                yield _measure(collective, scale, bits, num_elements, num_steps)


def _measure(collective: str, scale: str, bits: int, num_elements: int, num_steps: int) -> Bias:
    options = isthmus.Options(codec="quant", bits=bits, scale=scale, min_elements=0)
    nodes = SimulatedNodes(num_nodes=2, options=options)
    reduce = nodes.reduce if collective == "reduce-scatter" else nodes.all_reduce
    generator = torch.Generator().manual_seed(1)
    moments, products = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    error = energy = 0.0
    for _ in range(num_steps):
        gradients = [torch.randn(num_elements, generator=generator) for _ in range(2)]
        result = reduce("unit", gradients, 1.0).double()
        first, second = (gradient.double().chunk(2) for gradient in gradients)
        parts = torch.stack([torch.cat([first[0], second[1]]), torch.cat([second[0], first[1]])])  # own, foreign
        moments += parts @ parts.T
        products += parts @ result
        error += float((result - parts.sum(0)).square().sum())
        energy += float(parts.sum(0).square().sum())
    own_slope, foreign_slope = torch.linalg.solve(moments, products).tolist()
    return Bias(collective, scale, bits, own_slope, foreign_slope, error / energy)


def print_biases(biases: Iterator[Bias], console: Console) -> None:
    """A table."""
    table = Table(
        "collective", "scale", "bits", "own", "foreign", "error", title="slopes of the sum on what its terms were"
    )
    for bias in biases:
        slopes = (f"{slope:.4f}" for slope in (bias.own_slope, bias.foreign_slope))
        table.add_row(bias.collective, bias.scale, str(bias.bits), *slopes, f"{bias.error:.4f}")
    console.print(table)
