"""Training that was saved and goes on in new processes gives the bits of training that never stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import isthmus
from support import ranks
from support.checkpoints import MAKERS, fingerprint, seed, train, unit_states
from support.checks import finish

pytestmark = pytest.mark.processes

SAVED_AFTER = 3
STEPS = 6
KINDS = list(MAKERS)


def make(kind: str, model_seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    with seed(model_seed):
        model = MAKERS[kind]()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def save(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "isthmus": isthmus.state_dict(model)}
    dcp.save(state, checkpoint_id=folder / kind)
    torch.save(isthmus.state_dict(model), folder / f"{kind}.{dist.get_rank()}.pt")


def load(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> isthmus.LoadReport:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder / kind)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    return isthmus.load_checkpoint(folder / kind, model)


def uninterrupted(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    ranks.init()
    results = {}
    for kind in KINDS:
        model, optimizer = make(kind, 0)
        train(model, optimizer, range(SAVED_AFTER))
        save(kind, model, optimizer, folder)
        train(model, optimizer, range(SAVED_AFTER, STEPS))
        results[kind] = (fingerprint(model), [unit["name"] for unit in unit_states(model)])
    finish()
    return results


def resumed(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    ranks.init()
    results = {}
    for kind in KINDS:
        model, optimizer = make(kind, 1)
        report = load(kind, model, optimizer, folder)
        train(model, optimizer, range(SAVED_AFTER, STEPS))
        results[kind] = (fingerprint(model), list(report.restored), report.dropped)
    finish()
    return results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return ranks.run(uninterrupted, 4, folder), ranks.run(resumed, 4, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(runs: Any, kind: str) -> None:
    for without, after in zip(*runs, strict=True):
        digest, names = without[kind]
        assert names, "nothing was compressed: this shows nothing"
        assert after[kind] == (digest, names, ())
