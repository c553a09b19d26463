"""Lets each Python process that is started with `fake_gpu.environment` do what torch's CUDA kernels would."""

import torch

from support.fake_gpu import run_kernels_on_host

run_kernels_on_host()
# Attention of kernels that the host has, not of cuDNN's.
torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
