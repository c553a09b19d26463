"""Training that a launcher restarts: `python -m torch.distributed.run ... restarted_training.py FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import isthmus
from support import ranks
from support.checkpoints import backward, fingerprint, fsdp2, group, mesh_of, seed, unit_states
from support.checks import finish

STEPS = 7
SAVED_EVERY = 2
FAULTY_STEP = 5  # one step after the last checkpoint before it
FAULTY_RANK = 3

Injection = Callable[[nn.Module], None]


def die_in_the_backward_pass(model: nn.Module) -> None:
    """Kill -9 when some of this step's gradients are reduced, and others are not."""
    if dist.get_rank() == FAULTY_RANK:
        model.blocks[0].register_full_backward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def reduce_another_unit(model: nn.Module) -> None:
    """Do what makes all ranks raise: one of them takes another unit for the same."""
    unit = "another" if dist.get_rank() == FAULTY_RANK else "one"
    with isthmus.unit(unit):
        dist.reduce_scatter_tensor(torch.empty(1024), torch.ones(4096))


# On the first attempt, on the second.
INJECTIONS: list[Injection] = [die_in_the_backward_pass, reduce_another_unit]


Models = list[tuple[nn.Module, torch.optim.Optimizer]]


def save(models: Models, next_step: int, folder: Path) -> None:
    for index, (model, optimizer) in enumerate(models):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "isthmus": isthmus.state_dict(model)}
        dcp.save(state, checkpoint_id=folder / f"{next_step}.{index}")
    if dist.get_rank() == 0:
        (folder / "new").write_text(str(next_step))
        (folder / "new").rename(folder / "next_step")


def load(models: Models, folder: Path) -> int:
    """Load the last checkpoint, if there is one; returns the step to go on with."""
    if not (folder / "next_step").exists():
        return 0
    next_step = (folder / "next_step").read_text()
    for index, (model, optimizer) in enumerate(models):
        checkpoint = folder / f"{next_step}.{index}"
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
        report = isthmus.load_checkpoint(checkpoint, model)
        assert report.restored and not report.dropped, report
    return int(next_step)


def train(folder: Path, injection: Injection | None = None) -> list[str]:
    """Train, from the last checkpoint on; returns what this rank has in the end: digests, names of units.

    One model has the default codec, the other one with residuals.
    """
    ranks.init()
    models: Models = []
    for process_group in (dist.group.WORLD, group("tagc")):
        with seed(0):
            model = fsdp2(mesh_of(process_group))
        models.append((model, torch.optim.AdamW(model.parameters(), lr=1e-2)))
    begin = load(models, folder)
    for step in range(begin, STEPS):
        if step == FAULTY_STEP and injection is not None:
            injection(models[0][0])
        for model, optimizer in models:
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % SAVED_EVERY == 0:
            save(models, step + 1, folder)
    result = [text for model, _ in models for text in (fingerprint(model), *(u["name"] for u in unit_states(model)))]
    finish()
    return result


def main() -> None:
    """Go wrong on the first attempts; write the result of the one that does not."""
    folder, attempt, rank = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    result = train(folder, INJECTIONS[attempt] if attempt < len(INJECTIONS) else None)
    (folder / f"result{rank}").write_text("\n".join([str(attempt), *result]))


if __name__ == "__main__":
    main()
