"""The reader of recorded machines: NCCL topology XML."""
