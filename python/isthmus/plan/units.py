"""The units of a model: what FSDP gathers and reduces together, and the parameters that they hold."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from isthmus.units.layout import Parameter, rows


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

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of all units."""
        return sum(unit.num_parameters for unit in self.units)
