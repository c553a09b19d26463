"""Starts torchtitan's example, whose trainer asks for an accelerator, on CPUs: the example's path, then its options.

torchtitan 0.3 takes the device that torch names, and calls some functions of its module that torch.cpu lacks.
"""

import runpy
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch._utils

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda device=None: "CPU"
torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1 << 30)
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
torch.cpu.current_device = lambda: 0  # "cpu" otherwise, which is no number for barrier(device_ids=[...])


def tiny() -> "Trainer.Config":
    """Return torchtitan's smallest Llama, without its flex_attention, which has no backward pass on CPUs."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.training.seq_len, config.training.local_batch_size = 64, 2
    return config


if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
