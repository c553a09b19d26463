"""Trains examples/torchrun/train.py's model with Accelerate: see README.md beside this file.

By name: the group is made before the Accelerator, which keeps it. Attached: the group is Accelerate's own.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator

import isthmus

sys.path.append(str(Path(__file__).parents[1] / "torchrun"))
from train import batches, loss_of, make_model, report

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="a file to learn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attach", action="store_true", help="stay on Gloo or NCCL, and attach the model")
    arguments = parser.parse_args()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else None
    if not arguments.attach:
        dist.init_process_group("isthmus", device_id=gpu)
    accelerator = Accelerator(cpu=gpu is None)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)  # FSDP2 by fsdp.yaml on GPUs, on CPUs DDP
    if arguments.attach:
        isthmus.attach(model)
    else:
        isthmus.prepare(model)  # tells Isthmus DDP's gradients; FSDP2's are known without
    for step, sequences in zip(range(arguments.steps), batches(arguments.text, dist.get_rank()), strict=False):
        loss = loss_of(model, sequences.to(accelerator.device))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step}: loss {loss.item():.3f}", flush=True)
    if accelerator.is_main_process:
        report()
    accelerator.end_training()
