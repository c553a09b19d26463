"""Which embeddings have rows that share groups with other elements."""

import pytest

from isthmus.units.layout import Parameter
from isthmus.units.models import Unit
from isthmus.units.prepare import _noisy_in


def unit(*shapes: tuple[int, ...]) -> Unit:
    names = ["bias", "embedding.weight"] if len(shapes) == 2 else ["embedding.weight"]
    parameters = tuple(Parameter(name, shape) for name, shape in zip(names, shapes, strict=True))
    return Unit("u", parameters, in_rows=True, shard_group=None, replicate_group=None)


@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_rows_of_whole_half_groups_have_no_noise(width):
    assert list(_noisy_in(unit((10, width)), {"embedding.weight"})) == []
    assert list(_noisy_in(unit((64,), (10, width)), {"embedding.weight"})) == []
    assert list(_noisy_in(unit((7,), (10, width)), {"embedding.weight"})) == [f"embedding.weight ({width} elements)"]


@pytest.mark.parametrize("width", [32, 96, 144, 160])
def test_other_rows_have(width):
    assert list(_noisy_in(unit((10, width)), {"embedding.weight"})) == [f"embedding.weight ({width} elements)"]
    assert list(_noisy_in(unit((10, width)), set())) == [], "a matrix that is no embedding uses all rows"
