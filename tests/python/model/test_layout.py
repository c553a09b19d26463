"""Layouts hold what FSDP2, FSDP1 and DDP put into their reductions, element by element; rows of embeddings."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # defines torch.ops.fsdp.chunk_cat
from torch.testing._internal.distributed.fake_pg import FakeStore

from isthmus.model.layout import Layout, Parameter, clean_name, concatenated, mesh_part, rows
from isthmus.model.prepare import _noisy_in
from isthmus.model.units import Unit

assert _fsdp_collectives


def reduce_scatter_input(parameters, num_ranks):
    """What FSDP2 fills its reduce-scatter's input with (foreach_reduce): the number of each element's parameter."""
    gradients = [torch.full(p.shape, float(i)) for i, p in enumerate(parameters)]
    gradients = [
        g if p.dim == 0 else torch.cat(torch.chunk(g, num_ranks, dim=p.dim))
        for p, g in zip(parameters, gradients, strict=True)
    ]
    padded = sum(math.ceil(g.size(0) / num_ranks) * num_ranks * math.prod(g.shape[1:]) for g in gradients)
    out = torch.full((num_ranks, padded // num_ranks), -1.0)
    torch.ops.fsdp.chunk_cat(gradients, dim=0, num_chunks=num_ranks, out=out)
    return out


def shapes_for(num_ranks):
    sizes = st.integers(1, 9)
    dim0 = st.tuples(st.just(0), st.lists(sizes, min_size=1, max_size=3).map(tuple))
    dim1 = st.tuples(
        st.just(1), st.tuples(sizes, st.integers(1, 3), sizes).map(lambda s: (s[0], s[1] * num_ranks, s[2]))
    )
    return st.lists(st.one_of(dim0, dim1), min_size=1, max_size=4).map(
        lambda entries: [Parameter(f"p{i}", shape, dim) for i, (dim, shape) in enumerate(entries)]
    )


ranks_and_parameters = st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), shapes_for(n)))


@settings(max_examples=50)
@given(ranks_and_parameters)
def test_rows_are_what_fsdp2_reduces(ranks_and_parameters):
    num_ranks, parameters = ranks_and_parameters
    layout = rows(parameters, num_ranks)
    tensor = reduce_scatter_input(parameters, num_ranks)
    assert layout.num_elements == tensor.numel()
    for row in tensor:
        for number, section in enumerate(row.split(layout.section_elements)):
            assert set(section.tolist()) <= {number, 0}  # padding is zero


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=5), st.integers(1, 5))
def test_concatenated_parameters_are_padded_to_a_multiple(shapes, multiple):
    layout = concatenated([Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)], multiple)
    num_elements = sum(map(math.prod, shapes))
    assert layout.num_elements == math.ceil(num_elements / multiple) * multiple


def test_the_hash_is_stable_and_differs_for_different_layouts():
    weight, bias = Parameter("w", (4, 2)), Parameter("b", (8,))
    layouts = [
        rows([weight], 2),
        rows([bias], 2),
        rows([weight], 4),
        rows([weight, bias], 2),
        rows([bias, weight], 2),
        rows([Parameter("w", (2, 4))], 2),
        rows([Parameter("w", (4, 2), dim=1)], 2),
        concatenated([weight]),
        concatenated([weight], 5),
    ]
    hashes = {layout.hash for layout in layouts}
    assert len(hashes) == len(layouts)
    assert all(0 < value < 2**63 for value in hashes)
    assert rows([weight], 2).hash == 5069367885984324910  # in checkpoints: must not change
    part = rows([Parameter("w", (4, 2), part="0/2")], 2)
    assert part.hash == rows([weight], 2).hash  # it seeds codecs, and copies in all parts must come out alike
    assert part != rows([weight], 2)
    for layout in [*layouts, part]:
        assert Layout.from_json(layout.to_json()) == layout


def test_uneven_sharding_along_another_dimension_is_refused():
    with pytest.raises(ValueError, match="dimension 1 of 'p', 3, does not divide by 2"):
        rows([Parameter("p", (4, 3), dim=1)], 2).num_elements  # noqa: B018


def test_names_outlast_wrappers():
    assert clean_name("_fsdp_wrapped_module.blocks.0._checkpoint_wrapped_module._orig_mod.weight") == "blocks.0.weight"
    assert clean_name("_orig_mod") == ""


# --- Parts of models that lie beside each other in a mesh ---


@pytest.fixture
def rank_5_of_8() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    dist.destroy_process_group()


def mesh_of(*sizes: int, names: str) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=tuple(names.split()))


def unflattened(mesh: DeviceMesh, dim: str, *sizes: int, names: str) -> DeviceMesh:
    return mesh._unflatten(dim, sizes, tuple(names.split()))


@pytest.mark.usefixtures("rank_5_of_8")
def test_a_part_says_which_mesh_it_is_of_those_that_lie_beside_each_other() -> None:
    mesh = mesh_of(4, 2, names="dp tp")
    assert mesh_part(mesh["dp"]) == "1/2"
    assert mesh_part(mesh["tp"]) == "2/4"
    assert mesh_part(mesh) == ""
    cube = mesh_of(2, 2, 2, names="pp dp tp")
    assert mesh_part(cube["dp"]) == "3/4"
    assert mesh_part(cube["dp", "tp"]) == "1/2"
    assert mesh_part(cube["dp", "tp"]._flatten("both")) == "1/2"
    assert mesh_part(mesh_of(1, 8, names="pp dp")["dp"]) == ""
    assert mesh_part(DeviceMesh.from_group(dist.new_group([1, 3, 5, 7]), "cpu")) == ""


@pytest.mark.usefixtures("rank_5_of_8")
def test_a_part_is_the_same_where_the_root_does_not_show_the_dimensions() -> None:
    world = mesh_of(8, names="world")
    dense = unflattened(world, "world", 4, 2, names="dp tp")
    sparse = unflattened(world, "world", 2, 4, names="edp ep")  # experts lie otherwise
    assert mesh_part(dense["dp"]) == "1/2"
    assert mesh_part(sparse["edp"]) == "1/4"
    assert mesh_part(dense) == ""
    twice = unflattened(mesh_of(2, 4, names="pp rest"), "rest", 2, 2, names="dp tp")
    assert mesh_part(twice["dp"]) == "3/4"


def unit(*shapes: tuple[int, ...]) -> Unit:
    names = ["bias", "embedding.weight"] if len(shapes) == 2 else ["embedding.weight"]
    parameters = tuple(Parameter(name, shape) for name, shape in zip(names, shapes, strict=True))
    return Unit("u", parameters, in_rows=True)


@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_rows_of_whole_half_groups_have_no_noise(width):
    assert list(_noisy_in(unit((10, width)), {"embedding.weight"})) == []
    assert list(_noisy_in(unit((64,), (10, width)), {"embedding.weight"})) == []
    assert list(_noisy_in(unit((7,), (10, width)), {"embedding.weight"})) == [f"embedding.weight ({width} elements)"]


@pytest.mark.parametrize("width", [32, 96, 144, 160])
def test_other_rows_have(width):
    assert list(_noisy_in(unit((10, width)), {"embedding.weight"})) == [f"embedding.weight ({width} elements)"]
    assert list(_noisy_in(unit((10, width)), set())) == [], "a matrix that is no embedding uses all rows"
