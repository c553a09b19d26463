"""Trains a small model with FSDP2 to predict the next byte of a file: what the launchers here start.

init_method="isthmus://" takes rank and world from torchrun, srun or mpirun, and the address of rank 0's host where the
launcher says it; else from MASTER_ADDR.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus

CONTEXT = 32  # bytes that the model sees
# A process's number on its host, by torchrun, srun, Open MPI, and MPICH and Intel MPI.
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def make_model() -> nn.Sequential:
    """Return the model, with the same weights on all ranks: its Linear layers are its units."""
    torch.manual_seed(0)
    layers = [nn.Linear(1024, 512), nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 256)]
    hidden = [part for layer in layers[:-1] for part in (layer, nn.GELU())]
    return nn.Sequential(nn.Embedding(256, 1024 // CONTEXT), nn.Flatten(), *hidden, layers[-1])


def shard(model: nn.Module, **settings: Any) -> None:
    """Apply FSDP2, each Linear layer a unit."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **settings)
    fully_shard(model, **settings)


def batches(text: Path, seed: int) -> Iterator[torch.Tensor]:
    """Yield random sequences of a file; ranks with other seeds read others."""
    corpus = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8)
    places = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(corpus) - CONTEXT, (256, 1), generator=places)
        yield corpus[starts + torch.arange(CONTEXT + 1)].long()


def loss_of(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Return how badly the model predicts the last byte of each sequence."""
    return nn.functional.cross_entropy(model(sequences[:, :-1]), sequences[:, -1])


def report() -> None:
    """Print what Isthmus saw and sent."""
    stats = isthmus.stats()
    sent = {kind: of["inter"]["inter_node_sent_bytes"] / 1e6 for kind, of in stats["collectives"].items()}
    gradients = sent["reduce_scatter"] + sent["all_reduce"]
    print(f"{stats['node_map']}, by {stats['node_map_source']}")
    print(f"compressed {stats['compressed_calls']} reductions; exact: {stats['exact_calls'] or 'none'}")
    print(f"sent between nodes: gradients {gradients:.2f} MB, weights {sent['all_gather']:.2f} MB")


def train(text: Path, steps: int, attach: bool) -> None:
    """Train in a process group that the caller has made; rank 0 prints losses, and what Isthmus did."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model().to(device)
    shard(model)
    if attach:
        isthmus.attach(model)  # in a group of Isthmus nothing is needed here
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, sequences in zip(range(steps), batches(text, dist.get_rank()), strict=False):
        loss = loss_of(model, sequences.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    if dist.get_rank() == 0:
        report()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="a file to learn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attach", action="store_true", help="stay on Gloo or NCCL, and attach the model")
    arguments = parser.parse_args()
    gpu = None
    if torch.cuda.is_available():
        gpu = torch.device("cuda", int(next(os.environ[name] for name in LOCAL_RANKS if name in os.environ)))
        torch.cuda.set_device(gpu)
    backend = None if arguments.attach else "isthmus"
    dist.init_process_group(backend, init_method="isthmus://", device_id=gpu)
    train(arguments.text, arguments.steps, arguments.attach)
    dist.destroy_process_group()
