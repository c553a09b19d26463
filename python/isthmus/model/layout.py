"""Which parameters the elements of a reduced tensor belong to.

FSDP2 reduce-scatters rows, one for each rank: row r holds, one parameter after the other, the r-th chunk of each along
its sharded dimension, padded with zeros. HSDP all-reduces one such row. FSDP1 and DDP reduce parameters one after the
other, which is a single row. A `Layout` describes all of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from isthmus.torch_private.models import WRAPPERS, ranks_of_meshes_like


@dataclass(frozen=True)
class Parameter:
    """A parameter as the ranks of one group see it, or padding between parameters (no name)."""

    name: str
    shape: tuple[int, ...]
    dim: int = 0  # the dimension that FSDP2 shards
    part: str = ""  # which part of a tensor-parallel or pipeline-parallel model this is: "1/2"

    @cached_property
    def num_elements(self) -> int:
        """Return the elements of the parameter without padding of rows."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The order of elements in a reduced tensor of `num_rows` equal rows and `tail` elements of padding."""

    parameters: tuple[Parameter, ...]
    num_rows: int = 1
    tail: int = 0

    @cached_property
    def section_elements(self) -> tuple[int, ...]:
        """Return how many elements of a row belong to each parameter, padding included."""
        return tuple(map(self._section_elements, self.parameters))

    @cached_property
    def row_elements(self) -> int:
        """Elements of one row."""
        return sum(self.section_elements)

    @cached_property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return self.num_rows * self.row_elements + self.tail

    @cached_property
    def hash(self) -> int:
        """Return 63 bits that are stable over processes and versions; never 0, which stands for an unknown layout.

        It leaves out parts of a mesh: it seeds codecs, and copies of a parameter must come out alike in all parts.
        """
        text = Layout(tuple(replace(p, part="") for p in self.parameters), self.num_rows, self.tail).to_json()
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 1) or 1

    def to_json(self) -> str:
        """Return the layout as text; equal layouts give equal text."""
        parameters = [[p.name, list(p.shape), p.dim, p.part] for p in self.parameters]
        return json.dumps([self.num_rows, self.tail, parameters], separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Layout:
        """Return the layout that `to_json` wrote."""
        num_rows, tail, parameters = json.loads(text)
        return Layout(tuple(Parameter(n, tuple(s), d, part) for n, s, d, part in parameters), num_rows, tail)

    def _section_elements(self, parameter: Parameter) -> int:
        shape, dim = parameter.shape, parameter.dim
        if not shape:
            return 1
        if dim > 0 and shape[dim] % self.num_rows:
            raise ValueError(
                f"dimension {dim} of {parameter.name!r}, {shape[dim]}, does not divide by {self.num_rows} ranks"
            )
        return -(-shape[dim] // self.num_rows) * math.prod(shape[:dim] + shape[dim + 1 :])


def clean_name(name: str) -> str:
    """Return the name of a module or parameter without the parts that torch's wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def rows(parameters: Iterable[Parameter], num_ranks: int) -> Layout:
    """Return the layout of FSDP2's reduce-scatter over `num_ranks`."""
    return Layout(tuple(parameters), num_rows=num_ranks)


def concatenated(parameters: Iterable[Parameter], multiple_of: int = 1) -> Layout:
    """Return the layout of parameters one after the other, padded to a multiple of `multiple_of` elements."""
    layout = Layout(tuple(parameters))
    return Layout(layout.parameters, tail=-layout.row_elements % multiple_of)


def mesh_part(mesh: Any) -> str:
    """Return which one `mesh` is of the meshes that lie in its root as it does, "1/2"; "" if there is no other."""
    alike, own = ranks_of_meshes_like(mesh), set(mesh.mesh.flatten().tolist())
    place = next(place for place, ranks in enumerate(alike) if own.issuperset(ranks))
    return f"{place}/{len(alike)}" if len(alike) > 1 else ""
