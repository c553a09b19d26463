"""Models of units of given sizes."""

from collections.abc import Sequence

from isthmus.model.layout import Parameter
from isthmus.plan.units import Model, Unit


def units_of_sizes(sizes: Sequence[int]) -> Model:
    units = (Unit(f"unit {index}", (Parameter("all", (size,)),)) for index, size in enumerate(sizes))
    return Model("numbers", tuple(units))
