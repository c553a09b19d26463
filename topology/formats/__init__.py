"""Readers of recorded machines: NCCL topology XML, `nvidia-smi topo -m` text, JSON."""
