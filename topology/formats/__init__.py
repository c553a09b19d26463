"""Readers of recorded machines: hwloc XML, NCCL topology XML, `nvidia-smi topo -m` text, JSON."""
