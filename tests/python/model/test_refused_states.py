"""What is loaded wrongly is named on every rank and changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import isthmus
from python.model.saved_models import model_on, saved, shared_folder
from support.checkpoints import backward, fingerprint, fsdp2, hsdp_mesh, trained
from support.checks import Table

table = Table()


@contextmanager
def refused(model: nn.Module, message: str = "", error: Any = ValueError) -> Iterator[None]:
    """Loading fails on every rank, and what was there stays."""
    before = fingerprint(model)
    with pytest.raises(error, match=message):
        yield
    assert fingerprint(model) == before


def refused_state(state: dict[str, Any], message: str) -> None:
    model = trained(model_on())
    with refused(model, message, (ValueError, RuntimeError)):
        isthmus.load_state_dict(state, model)
    backward(model, 5)  # the group goes on


@table
def damaged_states_are_refused_and_change_nothing() -> None:
    good = isthmus.state_dict(trained(model_on()))
    rank = dist.get_rank()
    own, residual = f"rank{rank}", f"rank{rank}/0/1/residual"
    refused_state({}, r"no isthmus\.state_dict")
    refused_state({**good, own: torch.ones(3)}, "is a Tensor, not the description of a rank")
    refused_state({**good, own: good[own][:-9]}, rf"'rank{rank}' is damaged")
    refused_state({**good, own: '{"version": 3, "groups": [{}]}'}, rf"'rank{rank}' is damaged.*ranks")
    refused_state(
        {**good, own: '{"version": 2, "groups": [{"units": []}]}'},
        rf"'rank{rank}' has version 2, and this isthmus reads version 3: go on without the residuals",
    )
    refused_state(
        {**good, residual: good[residual][:-1]}, r"unit 'blocks.1' of rank \d has 587 elements where 588 were saved"
    )
    refused_state(
        {**good, residual: good[residual].double()}, "residual of unit blocks.1: expected a contiguous float32"
    )
    refused_state({**good, residual: good[residual] * torch.nan}, "blocks.1")
    refused_state(
        {key: value for key, value in good.items() if key != residual}, "residual of unit 'blocks.1'.*is missing"
    )


@table
def one_damaged_rank_fails_all_of_them() -> None:
    """Also with HSDP, where rank 3 shares no group with rank 0."""
    for make in (model_on, lambda: fsdp2(hsdp_mesh("2x2"))):
        model = trained(make())
        state = isthmus.state_dict(model)
        if dist.get_rank() == 0:
            state["rank0"] = "{}"
        with refused(model, "'rank0' is damaged"):
            isthmus.load_state_dict(state, model)


@table
def other_pieces_are_refused() -> None:
    folder = saved(trained(model_on()))
    with pytest.raises(ValueError, match="residuals were saved with tiers=two, and this group has flat"):
        isthmus.load_checkpoint(folder, model_on(tiers="flat"))


@table
def checkpoints_without_residuals_are_named() -> None:
    folder = shared_folder()
    dcp.save({"model": {"weight": torch.ones(3)}}, checkpoint_id=folder)
    model = trained(model_on())
    with refused(model, "the checkpoint has no 'isthmus'"):
        isthmus.load_checkpoint(folder, model)
    with refused(model, "metadata", Exception):
        isthmus.load_checkpoint(folder / "nothing", model)
    other_key = shared_folder()
    dcp.save({"residuals": isthmus.state_dict(model)}, checkpoint_id=other_key)
    assert len(isthmus.load_checkpoint(other_key, model, key="residuals").restored) == 3


@table
def dcp_load_alone_finds_out_that_residuals_are_missing() -> None:
    folder = saved(trained(model_on()))
    model = model_on()
    state = {"isthmus": isthmus.state_dict(model)}
    dcp.load(state, checkpoint_id=folder)
    with pytest.raises(ValueError, match=r"is missing.*use isthmus\.load_checkpoint\(\)"):
        isthmus.load_state_dict(state["isthmus"], model)


test_state = table.in_world()
