"""Nothing is lost and nothing goes astray: what compression holds back arrives later, at the weights that it is of.

Gradients are whole numbers that do not depend on the weights. After a while without gradients every residual is empty,
and then the weights have the very bits of plain training. A residual that is added to other elements, with another
scale, twice or never leaves other weights.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus.base.backends import backend_of
from python.training.wraps import fsdp1, fsdp2, hsdp
from support.checks import Table
from support.families import gathered, isthmus_groups, run_table, same_on_all_ranks, units_of_groups, weights_of, world

table = Table()
WIDTH = 64
STEPS = 6
EMPTYING_STEPS = 4  # of each kind of step
ALL = ("first", "second", "third")


class Weights(nn.Module):
    """Two matrices of one size and a longer one. Its loss has gradients that do not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.second = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.third = nn.Parameter(torch.zeros(2 * WIDTH, WIDTH))

    def forward(self, salt: int | None, used: tuple[str, ...]) -> torch.Tensor:
        loss = torch.zeros(())
        for name in used:
            weight = getattr(self, name)
            loss = loss + (weight * whole_numbers(weight.shape, salt, name).to(weight.dtype)).sum()
        return loss


class Pair(nn.Module):
    """Two units of equal sizes, so that mixing them up is possible."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Weights(), Weights()])

    def forward(self, salt: int | None, used: tuple[str, ...]) -> torch.Tensor:
        first, second = self.blocks
        return first(salt, used) + second(None if salt is None else salt + 500, used)  # type: ignore[no-any-return]


def whole_numbers(shape: torch.Size, salt: int | None, name: str) -> torch.Tensor:
    """Return this rank's gradient at a step; zeros without a step."""
    if salt is None:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(1000 * salt + 100 * len(name) + dist.get_rank())
    return torch.randint(-4, 5, tuple(shape), generator=generator).float()


Backward = Callable[[nn.Module, int | None, tuple[str, ...]], None]


def backward(model: nn.Module, salt: int | None, used: tuple[str, ...]) -> None:
    model(salt, used).backward()


def backward_twice(model: nn.Module, salt: int | None, used: tuple[str, ...]) -> None:
    """Accumulates: the first micro-batch has gradients of one parameter, and is not reduced."""
    model.set_requires_gradient_sync(False)
    backward(model, None if salt is None else salt + 50, used[:1])
    model.set_requires_gradient_sync(True)
    backward(model, salt, used)


def final_weights(
    wrap: Callable[[nn.Module], nn.Module],
    uses: tuple[tuple[str, ...], ...],
    *,
    prepared: bool,
    step: Backward,
    before_step: Callable[[nn.Module, int], None],
) -> tuple[torch.Tensor, dict[str, int]]:
    """Train, empty all residuals, and return weights and units. `uses`: by turns, which parameters have a gradient."""
    is_plain = not isthmus_groups()
    model = wrap(Pair())
    if prepared:
        isthmus.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(STEPS if is_plain else STEPS + EMPTYING_STEPS * len(uses)):
        before_step(model, number)
        step(model, number if number < STEPS else None, uses[number % len(uses)])
        optimizer.step()
        optimizer.zero_grad()
        if number == STEPS - 1 and not is_plain:
            assert any(gathered(any(map(any_left, states())))), "nothing was held back"
    left = gathered([state["name"] for state in states() if any_left(state)])
    assert not any(left), f"not empty yet: {left}"
    return weights_of(model), {} if is_plain else units_of_groups()


def states() -> list[dict[str, Any]]:
    return [state for group in isthmus_groups() for state in backend_of(group).unit_states()]


def any_left(state: dict[str, Any]) -> bool:
    residuals = [state["residual"], state["result_residual"]]
    return any(residual is not None and bool(residual.any()) for residual in residuals)


def conserves(
    store: dist.Store,
    wrap: Callable[[nn.Module], nn.Module],
    uses: tuple[tuple[str, ...], ...] = (ALL,),
    *,
    prepared: bool = True,
    step: Backward = backward,
    before_step: Callable[[nn.Module, int], None] = lambda model, number: None,
) -> dict[str, int]:
    """Hold the weights after compressed training against plain ones, bit by bit; return the units."""
    run = functools.partial(final_weights, wrap, uses, step=step, before_step=before_step)
    with world(store, "gloo"):
        plain, _ = run(prepared=False)
    with world(store, "tagc"):
        compressed, units = run(prepared=prepared)
        alike = same_on_all_ranks(compressed), same_on_all_ranks(units)
    assert alike == (True, True)
    assert units
    difference = (compressed - plain).abs()
    assert torch.equal(compressed, plain), f"{int((difference > 0).sum())} differ, by up to {float(difference.max())}"
    assert bool(plain.any())
    return units


@table
def fsdp2_conserves(store: dist.Store) -> None:
    units = conserves(store, fsdp2, prepared=False)
    assert set(units) == {"blocks.0 reduce_scatter", "blocks.1 reduce_scatter"}


@table
def fsdp2_conserves_when_the_reduced_size_changes(store: dist.Store) -> None:
    """Parameters without a gradient are not in the reduction: it is exact, and the residual rests, prepared or not."""
    conserves(store, fsdp2, (("first", "third"), ALL, ("first",)), prepared=False)


@table
def prepare_tells_apart_equal_sizes_of_different_parameters(store: dist.Store) -> None:
    units = conserves(store, fsdp2, (("first",), ("second",), ALL))
    assert len(units) == 2, units  # names alone


@table
def prepare_tells_apart_what_accumulation_adds(store: dist.Store) -> None:
    """The first micro-batch touches a parameter that the reduced one may not touch."""
    conserves(store, fsdp2, (ALL, ("second",), ("first", "third")), step=backward_twice)


@table
def hsdp_conserves_when_layouts_change(store: dist.Store) -> None:
    conserves(store, hsdp, (("first",), ("second",), ALL))


@table
def a_changed_divide_factor_conserves(store: dist.Store) -> None:
    """The scale of a unit changes at every other step: what was held back counts for as much as it did."""

    def change(model: Any, number: int) -> None:
        factor = float(2 ** (number // 2 % 4))
        for module in (*model.blocks, model):
            module.set_gradient_divide_factor(factor)
            if dist.get_backend() == "gloo":  # which has no PREMUL_SUM
                module.set_force_sum_reduction_for_comms(True)

    conserves(store, fsdp2, before_step=change)


@table
def fsdp1_conserves(store: dist.Store) -> None:
    """A flat parameter has one layout, whatever has gradients."""
    uses = (ALL, ("first",), ("third", "second"))
    wrap = functools.partial(fsdp1, auto_wrap_policy=ModuleWrapPolicy({Weights}), use_orig_params=True)
    for prepared in (False, True):
        units = conserves(store, wrap, uses, prepared=prepared)
        assert len(units) == 2, units


@table
def ddp_conserves(store: dist.Store) -> None:
    """Its buckets are rebuilt after the first step, or after the second."""
    wrap = functools.partial(DistributedDataParallel, bucket_cap_mb=0.02)
    assert len(conserves(store, wrap)) > 1
    assert len(conserves(store, functools.partial(wrap, static_graph=True))) > 1


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore", FutureWarning)
    return run_table(rank, world_size, table)


test_residuals = table.in_world(main)
