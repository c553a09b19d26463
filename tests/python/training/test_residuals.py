"""Nothing is lost and nothing goes astray: what compression holds back arrives later, at the weights that it is of."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from python.training.conservation import (
    BOTH,
    backward_twice,
    conserves,
    fsdp1,
    fsdp2,
    hsdp,
)
from support.checks import Table
from support.families import (
    run_table,
)

table = Table()


@table
def fsdp2_conserves(store: dist.Store) -> None:
    units = conserves(store, fsdp2, prepared=False)
    assert set(units) == {"left reduce_scatter", "right reduce_scatter"}


@table
def fsdp2_conserves_when_the_reduced_size_changes(store: dist.Store) -> None:
    """Parameters without a gradient are not in the reduction: other sizes are other units, prepared or not."""
    conserves(store, fsdp2, (("first", "third"), ("third",), ("first",)), prepared=False)


@table
def prepare_tells_apart_equal_sizes_of_different_parameters(store: dist.Store) -> None:
    units = conserves(store, fsdp2, (BOTH, ("first",), ("second",)))
    assert len(units) == 2, units  # names alone, each with three layouts


@table
def prepare_tells_apart_what_accumulation_adds(store: dist.Store) -> None:
    """The first micro-batch touches a parameter that the reduced one may not touch."""
    conserves(store, fsdp2, (BOTH, ("second",), ("first", "third")), step=backward_twice)


@table
def hsdp_conserves_when_layouts_change(store: dist.Store) -> None:
    conserves(store, hsdp, (BOTH, ("first",), ("second",)))


@table
def a_changed_divide_factor_conserves(store: dist.Store) -> None:
    """The scale of a unit changes at every other step: what was held back counts for as much as it did."""

    def change(model: Any, number: int) -> None:
        factor = float(2 ** (number // 2 % 4))
        for module in (model.left, model.right, model):
            module.set_gradient_divide_factor(factor)
            if dist.get_backend() == "gloo":  # which has no PREMUL_SUM
                module.set_force_sum_reduction_for_comms(True)

    conserves(store, fsdp2, before_step=change)


@table
def fsdp1_conserves(store: dist.Store) -> None:
    """A flat parameter has one layout, whatever has gradients."""
    uses = (BOTH, ("first",), ("third", "second"))
    for prepared in (False, True):
        units = conserves(store, functools.partial(fsdp1, use_orig_params=True), uses, prepared=prepared)
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
