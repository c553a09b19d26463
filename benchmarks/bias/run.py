"""`isthmus bench bias`: how much of what crosses between nodes arrives, and of what stays, with codec quant."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.bias.config import BiasConfig
from isthmus.benchmarks.simulate import LoopbackNetwork, RankWorld

WORKER_MODULE = "isthmus.benchmarks.bias.worker"
COLLECTIVES = ("reduce-scatter", "all-reduce")
_BITS = (4, 3, 2, 1)
_SCALES = ("least_error", "unbiased")
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Bias:
    """The result for two nodes' normally distributed gradients: a sum of both, each times a factor, and an error."""

    collective: str
    scale: str
    bits: int
    #: Of what an element's owner has itself, and of what the other node sent it: 1 is no bias.
    own_slope: float
    foreign_slope: float
    #: Relative squared error of the sum.
    error: float


def measure_biases(config: BiasConfig, log_dir: Path) -> Iterator[Bias]:
    """Every collective, scale and width, on two nodes of one rank. Raises RankFailure if a rank fails."""
    network = LoopbackNetwork(2, "bias is measured without a link")
    with RankWorld(network, 1, WORKER_MODULE, log_dir) as world:
        world.request({"do": "setup", "timeout_s": _TIMEOUT_S}, _TIMEOUT_S)
        for collective in COLLECTIVES:
            for scale in _SCALES:
                for bits in _BITS:
                    command = {"do": "measure", "collective": collective, "scale": scale, "bits": bits}
                    sizes = {"num_elements": config.num_elements, "num_steps": config.num_steps}
                    answers = world.request(command | sizes, config.num_steps * _TIMEOUT_S)
                    moments, products, error, energy = (
                        np.sum([answer[name] for answer in answers], axis=0)
                        for name in ("moments", "products", "error", "energy")
                    )
                    own_slope, foreign_slope = np.linalg.solve(moments, products).tolist()
                    yield Bias(collective, scale, bits, own_slope, foreign_slope, float(error / energy))


def print_biases(biases: Iterator[Bias], console: Console) -> None:
    """A table."""
    table = Table(
        "collective", "scale", "bits", "own", "foreign", "error", title="slopes of the sum on what its terms were"
    )
    for bias in biases:
        slopes = (f"{slope:.4f}" for slope in (bias.own_slope, bias.foreign_slope))
        table.add_row(bias.collective, bias.scale, str(bias.bits), *slopes, f"{bias.error:.4f}")
    console.print(table)
