"""Tunes a tiny Llama of bytes with PEFT's LoRA: torchrun ... examples/peft/train_lora.py [--copies NODES].

FSDP2 shards the model: a base frozen in bf16, adapters in float32. With a copy on each node (HSDP) nothing but the
adapters' gradients crosses.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import isthmus

CONTEXT = 64  # bytes
LAYERS = 2


def train(text: Path, steps: int, copies: int) -> None:
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else None
    dist.init_process_group("isthmus", device_id=gpu)
    shape = (copies, dist.get_world_size() // copies)
    mesh = init_device_mesh(gpu.type if gpu else "cpu", shape, mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=CONTEXT, **size)).bfloat16()
    model = get_peft_model(base, LoraConfig(r=32, target_modules="all-linear")).to(gpu or "cpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (*base.model.layers, model):
        fully_shard(layer, mesh=mesh if copies > 1 else mesh["shard"], mp_policy=policy)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)

    corpus = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        starts = torch.randint(len(corpus) - CONTEXT, (8,), generator=generator)
        batch = torch.stack([corpus[start : start + CONTEXT] for start in starts.tolist()]).to(gpu or "cpu")
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_(), op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        print(isthmus.summary())
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="a file to learn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--copies", type=int, default=1, help="of the model: one on each node, or one in all")
    arguments = parser.parse_args()
    train(arguments.text, arguments.steps, arguments.copies)
