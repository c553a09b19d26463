"""Trains examples/torchrun/train.py's model with Lightning and FSDP2: see README.md beside this file.

By name: the strategy takes the backend's. Attached: Lightning's own backend stays.
"""

import argparse
import itertools
import sys
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy

import isthmus

sys.path.append(str(Path(__file__).parents[1] / "torchrun"))
from train import batches, loss_of, make_model, report, shard


class Model(lightning.LightningModule):
    """The model, sharded over the ranks of all nodes."""

    def __init__(self, attach: bool) -> None:
        super().__init__()
        self.layers = make_model()
        self.attach = attach

    def configure_model(self) -> None:
        shard(self.layers, mesh=self.device_mesh["data_parallel"])
        if self.attach:
            isthmus.attach(self.layers)  # by name nothing is needed here

    def training_step(self, sequences: torch.Tensor, step: int) -> torch.Tensor:
        loss = loss_of(self.layers, sequences)
        if self.global_rank == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_end(self) -> None:
        if self.global_rank == 0:
            report()


class Batches(torch.utils.data.IterableDataset):
    """The batches of a rank: Lightning splits no such data itself."""

    def __init__(self, text: Path, steps: int) -> None:
        self.text, self.steps = text, steps

    def __iter__(self):
        return itertools.islice(batches(self.text, dist.get_rank()), self.steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="a file to learn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=1, help="hosts")
    parser.add_argument("--devices", type=int, default=4, help="ranks on each")
    parser.add_argument("--attach", action="store_true", help="stay on Gloo or NCCL, and attach the model")
    arguments = parser.parse_args()
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=arguments.devices,
        num_nodes=arguments.nodes,
        strategy=ModelParallelStrategy(
            data_parallel_size=arguments.nodes * arguments.devices,
            tensor_parallel_size=1,
            process_group_backend=None if arguments.attach else "isthmus",
        ),
        max_steps=arguments.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    loader = torch.utils.data.DataLoader(Batches(arguments.text, arguments.steps), batch_size=None)
    trainer.fit(Model(arguments.attach), loader)
    dist.destroy_process_group()
