"""Readers of recorded machines: NCCL topology XML, JSON."""
