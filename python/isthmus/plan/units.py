"""The units of a model: what FSDP gathers and reduces together, and the parameters that they hold."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from isthmus.plan.ranges import check_range
from isthmus.units.layout import Parameter, rows

MOST_PARAMETERS = 10**14
#: The default of `max_units`, above which reductions stay exact.
MOST_UNITS = 4096
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\d{1,3})?)([KMGBT]?)")
_FACTOR = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Unit:
    """What is gathered and reduced at once. is_root: FSDP2's outermost unit, which gathers first and reduces last."""

    name: str
    parameters: tuple[Parameter, ...]
    is_root: bool = False

    @cached_property
    def num_parameters(self) -> int:
        """Elements of all its parameters."""
        return sum(parameter.num_elements for parameter in self.parameters)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its parameters, in order."""
        return tuple(parameter.shape for parameter in self.parameters)

    def padded_elements(self, num_ranks: int) -> int:
        """Elements of FSDP2's tensor for it: every rank holds an equal part of each parameter's first dimension."""
        return _padded_elements(self.shapes, num_ranks)


@lru_cache(maxsize=65536)
def _padded_elements(shapes: tuple[tuple[int, ...], ...], num_ranks: int) -> int:
    return rows((Parameter("", shape) for shape in shapes), num_ranks).num_elements


@dataclass(frozen=True)
class Model:
    """A model as FSDP sees it. units: in the order in which their parameters are gathered, the root first."""

    name: str
    units: tuple[Unit, ...]

    def __post_init__(self) -> None:
        if not self.units:
            raise ValueError(f"model '{self.name}' has no units: expected 1 to {MOST_UNITS}")
        for unit in self.units:
            if unit.num_parameters == 0:
                raise ValueError(f"unit '{unit.name}' of '{self.name}' has 0 parameters: expected 1 or more")

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of all units."""
        return sum(unit.num_parameters for unit in self.units)


def equal_units(num_parameters: int, num_units: int) -> Model:
    """A model of so many parameters in units whose sizes differ by one at most. ValueError: value and range."""
    check_range("parameters", num_parameters, 1, MOST_PARAMETERS)
    check_range("units", num_units, 1, MOST_UNITS)
    if num_units > num_parameters:
        raise ValueError(f"units {num_units}: expected 1 to {num_parameters}, the number of parameters")
    least, larger = divmod(num_parameters, num_units)
    return units_of_sizes([least + (index < larger) for index in range(num_units)])


def units_of_sizes(sizes: Sequence[int]) -> Model:
    """A model with a unit of each of these numbers of parameters, in order."""
    units = (Unit(f"unit {index}", (Parameter("all", (size,)),)) for index, size in enumerate(sizes))
    return Model("numbers", tuple(units))


def parse_count(text: str, what: str) -> int:
    """The whole number that "7e9", "124M" or "4096" names. ValueError: what, the text, and the accepted form."""
    match = _COUNT.fullmatch(text.strip())
    count = float(match[1]) * _FACTOR[match[2]] if match else math.nan
    if not (math.isfinite(count) and count == round(count)):
        raise ValueError(f"{what} '{text}': expected a whole number, such as 4096, 7e9 or 124M (K, M, G or B, T)")
    return round(count)
