"""The environment variables that matter to a run: the known ones by group, and those that look mistyped.

Only values of known variables are ever shown: others might be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from isthmus.nccl_variables import NCCL_VARIABLES

_ISTHMUS = "isthmus"
#: Isthmus reads these beside its options; `isthmus.benchmarks.simulate` sets them for the processes that it starts.
_OWN = ("ISTHMUS_ANSWER_FD", "ISTHMUS_LAUNCHER_PID")

_TORCH = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_GLOO_LAZY_INIT",
    "TORCH_LOGS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_CUDA_EVENT_CACHE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_SHOW_CPP_STACKTRACES",
)
_GLOO = ("GLOO_SOCKET_IFNAME",)
_LAUNCHER = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_HOSTNAME",
    "PMIX_RANK",
    "RANK",
    "SLURM_JOB_NUM_NODES",
    "SLURM_LOCALID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
)
_KNOWN = {"launcher": _LAUNCHER, "torch": _TORCH, "gloo": _GLOO, "nccl": NCCL_VARIABLES}
#: Each prefix belongs to one program: unknown variables that begin so are named, without their value.
_PREFIXES = ("ISTHMUS_", "GLOO_", "NCCL_")


@dataclass(frozen=True)
class Variable:
    """A known variable that is set."""

    name: str
    value: str
    group: str


@dataclass(frozen=True)
class UnknownVariable:
    """A variable that nothing here reads. meant: the known variable that it resembles, if any."""

    name: str
    meant: str | None


def variables_set(environment: Mapping[str, str], options: Iterable[str]) -> list[Variable]:
    """Return the known variables that are set, by group. options: the variables of Isthmus's options."""
    groups = {_ISTHMUS: (*sorted(options), *_OWN)} | _KNOWN
    return [
        Variable(name, environment[name], group)
        for group, names in groups.items()
        for name in names
        if name in environment
    ]


def unknown_variables(environment: Mapping[str, str], options: Iterable[str]) -> list[UnknownVariable]:
    """Return unknown variables with a known prefix, which are usually mistyped."""
    known = [*options, *_OWN, *_GLOO, *NCCL_VARIABLES]
    unknown = sorted(name for name in environment if name.startswith(_PREFIXES) and name not in known)
    return [UnknownVariable(name, next(iter(get_close_matches(name, known, 1, 0.8)), None)) for name in unknown]
