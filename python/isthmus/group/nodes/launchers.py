"""The variables by which a launcher tells its processes about their node.

A *claim* is one process's: how many processes were started, which of them it is, on which node, and how many of them
that node has. Variables that are missing, or that no launcher sets so, are no claim.

Operators of Kubernetes set none of these: Kubeflow's give torchrun its arguments (PET_*) and MASTER_ADDR, RANK and
WORLD_SIZE of pods, which torchrun replaces by those of its processes, or start mpirun. A process of a pod that neither
starts has no claim.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Environment = Mapping[str, str]

_NUMBER = re.compile(r"\d{1,9}")
_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
#: torch's own default.
_MASTER_PORT = "29500"
#: Slurm's own bound on the nodes of a job is below this.
_MAX_NODES = 1 << 20


@dataclass(frozen=True)
class Claim:
    """One process's rank, world and node by its launcher."""

    launcher: str
    rank: int
    #: How many processes were started in all.
    size: int
    #: The launcher's number or name of the node; None: the process was told only how many share it.
    node: str | None
    #: How many of the processes the node has; None: the process was not told.
    node_size: int | None


_TORCHRUN, _SLURM, _PRRTE = "torchrun", "Slurm", "PRRTE"
#: Variables that hold a process's rank, how many were started, its node, and how many the node has. Inner launchers
#: come first; last what says least.
_LAUNCHERS = {
    _TORCHRUN: ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE"),
    # OMPI_COMM_WORLD_NODE_RANK is no node: it counts the node's processes over all jobs.
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_HOSTNAME", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH from 4.3 on and up to 4.2, and Intel MPI, whose name for the node is what its daemons leave behind. Slurm's
    # PMI plugins set PMI_RANK and PMI_SIZE as well, but nothing else of it.
    "MPICH's Hydra": (
        *("PMI_RANK", "PMI_SIZE"),
        "PMI_HOSTNAME MPIR_CVAR_CH3_INTERFACE_HOSTNAME HYDRA_BSTRAP_LOCALHOST",
        "MPI_LOCALNRANKS",
    ),
    # srun. A batch script has SLURM_PROCID and SLURM_NTASKS too, but nothing of a step.
    _SLURM: ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"),
    # Ray, and scripts that take torchrun's place, set no GROUP_RANK.
    "LOCAL_WORLD_SIZE": ("RANK", "WORLD_SIZE", "", "LOCAL_WORLD_SIZE"),
    # prterun tells a process's rank and node, and no sizes; mpirun of Open MPI 5 and srun --mpi=pmix tell these, too.
    _PRRTE: ("PMIX_RANK", "WORLD_SIZE", "PMIX_HOSTNAME", ""),
}

#: What places equally many on each node.
_EVENLY = {
    _TORCHRUN: "the same --nproc-per-node everywhere",
    _SLURM: "srun's --ntasks-per-node",
    "Open MPI": "mpirun's --map-by ppr:8:node",
    "MPICH's Hydra": "mpirun's -ppn",
    _PRRTE: "prterun's --map-by ppr:8:node",
}


def innermost_claim(environment: Environment, world_size: int) -> Claim | None:
    """Return the claim of the launcher that started this world; None where no launcher did.

    Launchers are nested, and the outer ones' variables stay. Two things tell them apart. Only the launcher that started
    a world started as many processes as the world has ranks: a batch script's or an outer srun's tasks are not the
    ranks of the torchrun in it. And where several have that size, the first of `_LAUNCHERS` is the inner one: torchrun
    runs in tasks of mpirun and srun, mpirun in an allocation of Slurm.
    """
    return next((claim for claim in _claims(environment) if claim.size == world_size), None)


def claim_beyond(environment: Environment, size: int) -> Claim | None:
    """Return the claim of a launcher that started more than `size` processes and names nodes; None without one."""
    return next((claim for claim in _claims(environment) if claim.size > size and claim.node is not None), None)


def launched_as(environment: Environment) -> Claim | None:
    """Return the innermost launcher's claim, for a process that is to make its world by it; None without a launcher."""
    return next(_claims(environment), None)


def rendezvous(environment: Environment, option: str, command: str) -> dict[str, str]:
    """Return RANK and WORLD_SIZE by the launcher, and the address at which its processes meet, for torch.

    option: what the user gave, to begin messages with; command: an example of what to type. ValueError: no launcher
    started this process, or processes of several hosts have no address. Looks up the name of rank 0's host.
    """
    claim = launched_as(environment)
    if claim is None and not {"RANK", "WORLD_SIZE"} <= environment.keys():
        if "PMIX_RANK" in environment:
            raise ValueError(
                f"{option}: {_PRRTE} tells no process how many there are: set WORLD_SIZE, as in `prterun -n 8 -x "
                "WORLD_SIZE=8 ...`"
            )
        looked_for = ", ".join(dict.fromkeys(names[0] for names in _LAUNCHERS.values()))
        raise ValueError(
            f"{option}: no launcher started this process: start it on every rank, as in `{command}` (looked for "
            f"{looked_for}, and what launchers set beside them)"
        )
    found = {} if claim is None else {"RANK": str(claim.rank), "WORLD_SIZE": str(claim.size)}
    if "MASTER_ADDR" not in environment:
        found["MASTER_ADDR"] = _address_of_rank_0(environment, claim, option)
    if "MASTER_PORT" not in environment:
        found["MASTER_PORT"] = _master_port(environment, claim)
    return found


def _address_of_rank_0(environment: Environment, claim: Claim | None, option: str) -> str:
    if claim is not None and claim.node_size == claim.size:
        return "127.0.0.1"
    advice = "set MASTER_ADDR to the address of rank 0's host, and MASTER_PORT to a free port there"
    if claim is None or claim.launcher != _SLURM:
        raise ValueError(f"{option}: {claim.launcher if claim else 'RANK'} does not say where rank 0 is: {advice}")
    host = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:  # torch would ask for it again until its timeout
        raise ValueError(
            f"{option}: '{host}', the first of SLURM_STEP_NODELIST, is no name of a host here ({error}): {advice}"
        ) from error
    return host


def _master_port(environment: Environment, claim: Claim | None) -> str:
    """One that keeps two jobs of Slurm on a node apart; elsewhere torch's own default."""
    job = _number(environment, "SLURM_JOB_ID") if claim is not None and claim.launcher == _SLURM else None
    return _MASTER_PORT if job is None else str(20000 + job % 10000)


def first_host(text: str) -> str:
    """Return the first of the hosts that Slurm writes as "rack[0-3]node[07,09-12],login1": "rack0node07"."""
    return re.sub(r"\[(\w*)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", text, maxsplit=1)[0])


def uneven(sizes: Sequence[int], source: str) -> str:
    """Say that nodes have so many ranks by `source`, where they must have equally many, and how to start them so."""
    asked = [option for launcher, option in _EVENLY.items() if source.startswith(launcher)]
    advice = f"start as many on each, as with {' or '.join(asked or _EVENLY.values())}"
    return f"nodes have {min(sizes)} to {max(sizes)} ranks, by {source}; {advice}"


def tasks_per_node(text: str) -> list[int]:
    """Return the numbers that Slurm writes as "4(x2),3": [4, 4, 3]. Empty for anything else."""
    tasks: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word)
        if not match or len(tasks) + int(match[2] or 1) > _MAX_NODES:
            return []
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _claims(environment: Environment) -> Iterator[Claim]:
    for launcher, (rank_name, size_name, node_names, node_size_name) in _LAUNCHERS.items():
        rank, size, node_size = (_number(environment, name) for name in (rank_name, size_name, node_size_name))
        node = next((environment[name] for name in node_names.split() if environment.get(name)), None)
        if launcher in (_TORCHRUN, _SLURM):
            number = _number(environment, node_names)
            if number is None:
                continue  # another launcher started the process
            node = str(number)
            if launcher == _SLURM:
                tasks = tasks_per_node(environment.get(node_size_name, ""))
                node_size = tasks[number] if number < len(tasks) else None
        if rank is None or size is None or rank >= size:
            continue
        if launcher == _PRRTE or (node_size is not None and 1 <= node_size <= size):
            yield Claim(launcher, rank, size, node, node_size)


def _number(environment: Environment, name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None
