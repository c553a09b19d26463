"""Trains a tiny GPT-2 of bytes with Hugging Face's Trainer: torchrun ... examples/transformers/train_trainer.py.

On GPUs the Trainer is asked for FSDP2; on CPUs it knows DDP alone.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import isthmus

CONTEXT = 64  # bytes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="a file to learn")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else None
    # Before TrainingArguments, which keep a group that exists. FSDP labels its gradients, DDP does not.
    options = isthmus.Options(gradients="labelled" if gpu else "backward")
    dist.init_process_group("isthmus", device_id=gpu, pg_options=options)
    corpus = torch.frombuffer(bytearray(arguments.text.read_bytes()), dtype=torch.uint8).long()
    sequences = corpus[: len(corpus) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    size = {"n_positions": CONTEXT, "n_embd": 128, "n_layer": 2, "n_head": 4}
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **size)),
        args=TrainingArguments(
            "build/trainer",
            max_steps=arguments.steps,
            per_device_train_batch_size=8,
            use_cpu=gpu is None,
            fsdp=gpu is not None,
            fsdp_config={"version": 2} if gpu else None,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=[{"input_ids": sequence, "labels": sequence} for sequence in sequences],
    )
    trainer.train()
    if dist.get_rank() == 0:
        stats = isthmus.stats()
        print(f"{stats['node_map']}, by {stats['node_map_source']}")
        print(f"compressed {stats['compressed_calls']} reductions; exact: {stats['exact_calls'] or 'none'}")
    dist.destroy_process_group()
