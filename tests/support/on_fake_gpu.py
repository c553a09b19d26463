"""Runs a module where the fake GPU is preloaded: python -m support.on_fake_gpu MODULE ARGUMENTS."""

from __future__ import annotations

import runpy
import sys

import torch

from support.fake_gpu import run_kernels_on_host

if __name__ == "__main__":
    run_kernels_on_host()
    # Attention of kernels that the host has, not of cuDNN's.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
