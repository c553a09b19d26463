"""What lets several ranks of NCCL share one GPU. Sockets join them: no feature for several GPUs is tried."""

from __future__ import annotations

#: What all ranks take together.
ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
    "GLOO_SOCKET_IFNAME": "lo",
}
# "Since 2.30, experimental": docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-multi-rank-gpu-enable.
# More than two ranks must bound what each occupies, or NCCL may hang.
_ALLOWED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}


def of_rank(rank: int, nccl_version: tuple[int, ...] | None = None) -> dict[str, str]:
    """Return what one rank needs beside that. nccl_version: torch's, if not given.

    NCCL refuses two ranks that have host and GPU in common, unless it may: before 2.30 each rank is a host of its own.
    """
    if nccl_version is None:
        import torch

        nccl_version = torch.cuda.nccl.version()
    return dict(_ALLOWED) if nccl_version >= (2, 30) else {"NCCL_HOSTID": f"isthmus-{rank}"}
