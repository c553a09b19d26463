"""What a codec holds back of a gradient arrives later, in its own unit, to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import isthmus
from isthmus import backends as _backends
from python.backend.gradients import (
    NODE_MAPS,
    WORLD_SIZE,
    Groups,
    all_reduce,
    equal_on_all_ranks,
    inputs_of_all_ranks,
    on_all_ranks,
    own_chunk,
    reduce_scatter,
    run_table,
)
from support.checks import Table, World
from support.tested_codecs import CODECS

pytestmark = pytest.mark.processes
table = Table()


@table
def all_reduce_conserves_every_element(groups: Groups) -> None:
    """Both residuals, of the pieces and of the result, are empty at last: nothing is lost, and all ranks are equal."""
    for nodes in NODE_MAPS:
        group = groups(nodes=nodes, segments=2, **CODECS["tagc"])
        numel = WORLD_SIZE * 5000 + 3
        expected, received = torch.zeros(numel), torch.zeros(numel)
        unsent_seen = False
        for step in range(24):
            sources = [(16 * source).round() for source in inputs_of_all_ranks(numel, torch.float32, salt=step)]
            if step >= 4:
                sources = [torch.zeros(numel) for _ in sources]
            expected += torch.stack(sources).sum(0)
            result = all_reduce(group, sources[dist.get_rank()], unit="conserved")
            assert equal_on_all_ranks(groups, result)
            received += result
            unsent_seen = unsent_seen or not torch.equal(received, expected)
        assert isthmus.stats(group)["compressed_calls"] == 24
        assert on_all_ranks(groups, unsent_seen and torch.equal(received, expected)), (nodes, unsent_seen)


@table
def all_reduce_and_reduce_scatter_of_one_label_are_two_units(groups: Groups) -> None:
    """HSDP issues both inside one label."""
    group = groups(**CODECS["tagc"], max_units=4093)
    ones, zeros = torch.ones(WORLD_SIZE * 4096), torch.zeros(WORLD_SIZE * 4096)
    reduce_scatter(group, ones)
    assert torch.count_nonzero(all_reduce(group, zeros)) == 0
    assert isthmus.stats(group)["num_units"] == 2


@table
def tagc_keeps_what_its_sparsity_says(groups: Groups) -> None:
    group = groups(codec="tagc")
    reduce_scatter(group, inputs_of_all_ranks(1 << 18, torch.float32)[dist.get_rank()])
    stats = isthmus.stats(group)
    assert stats["codec"]["encoded_elements"] == 1 << 16
    assert 0 < stats["codec"]["kept_elements"] <= (1 << 16) * 0.0125 + 1
    assert stats["residual_bytes"] == 4 << 16


@table
def reduce_scatter_conserves_every_element(groups: Groups) -> None:
    """Small whole numbers sum exactly. After steps with gradients, steps without empty the residual."""
    for nodes in NODE_MAPS:
        group = groups(nodes=nodes, segments=2, **CODECS["tagc"])
        numel = WORLD_SIZE * 5000
        expected = torch.zeros(numel // WORLD_SIZE)
        received = torch.zeros(numel // WORLD_SIZE)
        unsent_seen = False
        for step in range(16):
            sources = [(16 * source).round() for source in inputs_of_all_ranks(numel, torch.float32, salt=step)]
            if step >= 4:
                sources = [torch.zeros(numel) for _ in sources]
            expected += own_chunk(torch.stack(sources).sum(0))
            received += reduce_scatter(group, sources[dist.get_rank()], unit="conserved")
            unsent_seen = unsent_seen or not torch.equal(received, expected)
        assert on_all_ranks(groups, unsent_seen and torch.equal(received, expected)), (nodes, unsent_seen)


@table
def the_default_codec_keeps_nothing_unless_it_is_told_to(groups: Groups) -> None:
    """One gradient again and again: errors of single steps add up, and with feedback only the last one is left."""
    numel, steps = WORLD_SIZE * 4096, 12
    sources = inputs_of_all_ranks(numel, torch.float32)
    exact = own_chunk(torch.stack(sources).sum(0))
    lost = {}
    for error_feedback in ("codec", "on"):
        group = groups(error_feedback=error_feedback)
        received = [reduce_scatter(group, sources[dist.get_rank()], unit="again") for _ in range(steps)]
        assert isthmus.stats(group)["residual_bytes"] == (4 * 4096 if error_feedback == "on" else 0)
        first = torch.linalg.vector_norm(received[0] - exact)
        lost[error_feedback] = float(torch.linalg.vector_norm(sum(received) - steps * exact) / first)
        left = reduce_scatter(group, torch.zeros(numel), unit="again")
        assert on_all_ranks(groups, bool(left.any()) == (error_feedback == "on"))
    assert lost["on"] < 1.2, lost
    # By least error a step takes a little too little, always; the rest is another one at each step.
    assert 0.8 * steps**0.5 < lost["codec"] < 2 * steps**0.5, lost


@table
def units_keep_their_residuals_apart(groups: Groups) -> None:
    group = groups(**CODECS["tagc"])
    before = isthmus.stats(group)["num_units"]
    numel = WORLD_SIZE * 4096
    ones, zeros = torch.ones(numel), torch.zeros(numel)
    reduce_scatter(group, ones, unit="first")
    assert torch.count_nonzero(reduce_scatter(group, zeros, unit="second")) == 0
    assert torch.count_nonzero(reduce_scatter(group, torch.zeros(2 * numel), unit="first")) == 0  # another layout
    assert torch.count_nonzero(reduce_scatter(group, zeros, unit="first")) > 0
    assert isthmus.stats(group)["num_units"] == before + 3


@table
def a_unit_may_reduce_several_times(groups: Groups) -> None:
    """A layer that is called twice: its residual is added to whatever of its gradient comes next."""
    group = groups(max_units=4094, **CODECS["tagc"])
    for _ in range(3):
        for name in ("once", "twice", "twice"):
            with isthmus.unit(name):
                dist.reduce_scatter_tensor(torch.empty(256), torch.ones(WORLD_SIZE * 256), group=group)
    steps = {unit["name"]: unit["step"] for unit in _backends.isthmus_backend(group).unit_states()}
    assert steps == {"once": 3, "twice": 6}
    with pytest.raises(ValueError, match="a unit needs a name"), isthmus.unit(""):
        pass
    with pytest.raises(KeyError), isthmus.unit("raising"):
        raise KeyError
    isthmus.reset_stats(group)
    dist.reduce_scatter_tensor(torch.empty(256), torch.ones(WORLD_SIZE * 256), group=group)
    assert isthmus.stats(group)["exact_calls"] == {"not recognised as a gradient": 1}


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_table(table)


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, env={"ISTHMUS_LOG": "error"})


@pytest.mark.parametrize("name", table.names)
def test_gradient(world: World, name: str) -> None:
    world.check(name)
