"""Trains a small model on replica groups that come and go: torchft decides who takes part, Isthmus joins them.

torchrun starts each replica group by itself, here of one process. Whoever is killed may be started again: it loads the
state of the others and goes on with them.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torchft
from torch import nn

from isthmus.torchft import Manager, ProcessGroupIsthmus

CONTEXT = 32  # bytes that the model sees


def make_model() -> nn.Sequential:
    """Return the model, with the same weights in all replica groups."""
    torch.manual_seed(0)
    layers = [nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256)]
    return nn.Sequential(nn.Embedding(256, 1024 // CONTEXT), nn.Flatten(), *layers)


def loss_of(model: nn.Module, corpus: torch.Tensor, seed: int) -> torch.Tensor:
    """Return how badly the model predicts the last byte of random sequences."""
    starts = torch.randint(len(corpus) - CONTEXT, (256, 1), generator=torch.Generator().manual_seed(seed))
    sequences = corpus[starts + torch.arange(CONTEXT + 1)].long()
    return nn.functional.cross_entropy(model(sequences[:, :-1]), sequences[:, -1])


def main() -> None:
    """Train until the replica groups together have made so many steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("replica", type=int, help="the number of this replica group, from 0 on")
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="a file to learn")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--local-steps", type=int, default=0, help="DiLoCo: steps of each replica group between sums")
    arguments = parser.parse_args()
    corpus = torch.frombuffer(bytearray(arguments.text.read_bytes()), dtype=torch.uint8)
    model = make_model()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)

    group = ProcessGroupIsthmus(timeout=timedelta(seconds=10))
    manager = Manager(
        pg=group,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["inner"])),
        min_replica_size=1,
        use_async_quorum=not arguments.local_steps,
        replica_id=f"replica_{arguments.replica}",
        timeout=timedelta(seconds=20),
    )
    if arguments.local_steps:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.5, nesterov=True)
        with torchft.local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=arguments.local_steps):
            while manager.current_step() < arguments.steps:
                step(manager, model, inner, corpus, arguments.replica)
    else:
        parallel = torchft.DistributedDataParallel(manager, model)
        optimizer = torchft.Optimizer(manager, inner)
        while manager.current_step() < arguments.steps:
            step(manager, parallel, optimizer, corpus, arguments.replica)

    stats = group.stats()
    sent = stats["collectives"]["all_reduce"]["inter"]["inter_node_sent_bytes"]
    print(
        f"{stats['torchft']}; compressed {stats['compressed_calls']} reductions; sent {sent / 1e6:.2f} MB", flush=True
    )
    manager.shutdown(wait=False)
    os._exit(0)  # torchft's threads may wait for a lighthouse that is gone


def step(
    manager: Manager, model: nn.Module, optimizer: torch.optim.Optimizer, corpus: torch.Tensor, replica: int
) -> None:
    """Make one step, of all replica groups or with DiLoCo of this one; print what came of it."""
    before = manager.current_step()
    optimizer.zero_grad()  # torchft.Optimizer asks who takes part
    loss = loss_of(model, corpus, seed=1000 * before + replica)
    loss.backward()
    optimizer.step()  # where all have succeeded
    if manager.current_step() > before:
        print(f"step {before}: loss {loss.item():.3f}, {manager.num_participants()} replica groups", flush=True)


if __name__ == "__main__":
    main()
