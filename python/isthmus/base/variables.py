"""The environment variables that matter to a run, by group, and those of Isthmus that look mistyped.

Only values of variables that belong to a known program are ever shown: others might be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

#: How names begin, by who reads or sets them. Slurm's are only those of steps and tasks: it has secrets, too.
_PREFIXES = {
    "launcher": (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR"),
        *("HYDRA_BSTRAP_LOCALHOST", "MASTER_PORT", "MPI_LOCAL", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"),
        *("OMPI_COMM_WORLD_", "PET_", "PMI_", "PMIX_RANK", "PMIX_HOSTNAME"),
        *("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_LOCALID", "SLURM_N", "SLURM_PROCID", "SLURM_STEP_"),
        *("SLURM_TASKS_PER_NODE", "TORCHELASTIC_"),
    ),
    "torch": ("CUDA_", "OMP_NUM_THREADS", "PYTORCH_", "TORCH_"),
    "gloo": ("GLOO_",),
    "nccl": ("NCCL_",),
}


def variables_set(environment: Mapping[str, str], options: Iterable[str]) -> list[dict[str, str]]:
    """Return name, value and group of the known variables that are set. options: the variables of Isthmus's options."""
    found = [("isthmus", name) for name in sorted(options) if name in environment]
    for group, prefixes in _PREFIXES.items():
        found += [(group, name) for name in sorted(environment) if name.startswith(prefixes)]
    return [{"name": name, "value": environment[name], "group": group} for group, name in found]


def unknown_variables(environment: Mapping[str, str], options: Iterable[str]) -> dict[str, str | None]:
    """Return variables that begin as Isthmus's and are none, each with the one that it resembles, if any."""
    known = [*options]
    unknown = sorted(name for name in environment if name.startswith("ISTHMUS_") and name not in known)
    return {name: next(iter(get_close_matches(name, known, 1, 0.8)), None) for name in unknown}
