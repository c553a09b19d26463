"""What launchers tell their processes: environments as each of them sets them, nested ones, and broken ones.

Recorded from torch 2.11, Open MPI 4.1.4 and 5.0.11, prterun of PRRTE 3.0.14 (in Open MPI 5.0.11), MPICH 4.0.2 and
5.0.2, and Intel MPI 2021.19, on two hosts made by network namespaces and a stand-in for ssh; Slurm 22.05 with two
slurmd on one machine, in which the example of Slurm runs.
"""

import os
import re
import socket
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from isthmus.group.nodes.launchers import (
    Claim,
    first_host,
    innermost_claim,
    launched_as,
    rendezvous,
    tasks_per_node,
    uneven,
)
from support import ranks

Environment = dict[str, str]


def torchrun(rank: int, size: int, agent: int, local_rank: int, local_size: int) -> Environment:
    return {
        "GROUP_RANK": str(agent),
        "GROUP_WORLD_SIZE": "2",
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "RANK": str(rank),
        "TORCHELASTIC_RUN_ID": "none",
        "WORLD_SIZE": str(size),
    }


def open_mpi(rank: int, size: int, host: str, local_rank: int, local_size: int) -> Environment:
    """Versions 4 and 5."""
    return {
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "PMIX_HOSTNAME": host,
        "PMIX_RANK": str(rank),
    }


def prterun(rank: int, host: str) -> Environment:
    """Nothing says how many there are."""
    return {
        "PMIX_HOSTNAME": host,
        "PMIX_NAMESPACE": "prterun-hosta-14672@1",
        "PMIX_RANK": str(rank),
        "PRTE_LAUNCHED": "1",
    }


def hydra(rank: int, size: int, host: Environment, local_rank: int, local_size: int) -> Environment:
    return host | {
        "MPI_LOCALNRANKS": str(local_size),
        "MPI_LOCALRANKID": str(local_rank),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


def mpich(rank: int, size: int, host: str, local_rank: int, local_size: int) -> Environment:
    """Version 4."""
    return hydra(rank, size, {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME": host}, local_rank, local_size)


def mpich_5(rank: int, size: int, host: str, local_rank: int, local_size: int) -> Environment:
    return hydra(rank, size, {"PMI_HOSTNAME": host}, local_rank, local_size)


def intel_mpi(rank: int, size: int, host: str, local_rank: int, local_size: int) -> Environment:
    """What its daemons tell each other stays in the environment."""
    node = {"HYDRA_BSTRAP_LOCALHOST": host, "HYDRA_BSTRAP_NODE_ID": "0", "HYDRA_BSTRAP_LAUNCHER": "ssh"}
    return hydra(rank, size, node, local_rank, local_size)


def batch_script(num_tasks: int, num_nodes: int) -> Environment:
    """What sbatch's script sees: the first task of the allocation, and no step."""
    return {
        "ENVIRONMENT": "BATCH",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": str(num_nodes),
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(num_nodes),
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": str(num_tasks),
        "SLURM_PROCID": "0",
        "SLURM_TASKS_PER_NODE": f"{num_tasks // num_nodes}(x{num_nodes})",
    }


def srun(rank: int, size: int, node: int, local_rank: int, tasks: str) -> Environment:
    """What a task of srun sees, which has what the batch script left around it."""
    return batch_script(16, 4) | {
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(size),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[0-1]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
    }


VARIABLES = [
    *(torchrun(0, 1, 0, 0, 1) | open_mpi(0, 1, "", 0, 1) | srun(0, 1, 0, 0, "") | prterun(0, "")),
    *(mpich(0, 1, "", 0, 1) | mpich_5(0, 1, "", 0, 1) | intel_mpi(0, 1, "", 0, 1)),
]


def without(environment: Mapping[str, str], *names: str) -> Environment:
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    ("environment", "world_size", "claim"),
    [
        ({}, 4, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, 4, None),  # a pod of Kubernetes, or by hand
        (torchrun(5, 8, 1, 1, 4), 8, Claim("torchrun", 5, 8, "1", 4)),
        (torchrun(2, 3, 1, 0, 1), 3, Claim("torchrun", 2, 3, "1", 1)),  # the other agent had two
        (without(torchrun(5, 8, 1, 1, 4), "GROUP_RANK"), 8, Claim("LOCAL_WORLD_SIZE", 5, 8, None, 4)),
        (open_mpi(1, 3, "nodec", 0, 1), 3, Claim("Open MPI", 1, 3, "nodec", 1)),
        (without(open_mpi(1, 3, "nodec", 0, 1), "PMIX_HOSTNAME"), 3, Claim("Open MPI", 1, 3, None, 1)),
        (mpich(2, 3, "nodeb", 1, 2), 3, Claim("MPICH's Hydra", 2, 3, "nodeb", 2)),
        (mpich_5(2, 3, "nodeb", 1, 2), 3, Claim("MPICH's Hydra", 2, 3, "nodeb", 2)),
        (intel_mpi(2, 3, "nodeb", 1, 2), 3, Claim("MPICH's Hydra", 2, 3, "nodeb", 2)),
        (without(mpich_5(2, 3, "nodeb", 1, 2), "PMI_HOSTNAME"), 3, Claim("MPICH's Hydra", 2, 3, None, 2)),
        (prterun(2, "nodeb"), 3, None),
        (prterun(2, "nodeb") | {"WORLD_SIZE": "3"}, 3, Claim("PRRTE", 2, 3, "nodeb", None)),
        (srun(5, 7, 1, 1, "4,3"), 7, Claim("Slurm", 5, 7, "1", 3)),
        (srun(5, 8, 1, 1, "4(x2)"), 8, Claim("Slurm", 5, 8, "1", 4)),
        # With srun --mpi=pmi2 PMI_RANK is Slurm's.
        (srun(1, 8, 0, 1, "4(x2)") | {"PMI_RANK": "1", "PMI_SIZE": "8"}, 8, Claim("Slurm", 1, 8, "0", 4)),
        (srun(1, 8, 0, 1, "4(x2)") | {"PMIX_RANK": "1", "PMIX_HOSTNAME": "a"}, 8, Claim("Slurm", 1, 8, "0", 4)),
    ],
)
def test_what_each_launcher_says(environment: Environment, world_size: int, claim: Claim | None) -> None:
    assert innermost_claim(environment, world_size) == claim


@pytest.mark.parametrize(
    ("environment", "world_size", "launcher"),
    [
        # torchrun on each node of an allocation: its agents are the tasks.
        (batch_script(2, 2) | torchrun(5, 8, 1, 1, 4), 8, "torchrun"),
        (srun(1, 2, 1, 0, "1(x2)") | torchrun(5, 8, 1, 1, 4), 8, "torchrun"),
        (open_mpi(1, 2, "b", 0, 1) | torchrun(5, 8, 1, 1, 4), 8, "torchrun"),
        # As many agents as ranks: both have the size, and torchrun is the inner one.
        (srun(1, 2, 1, 0, "1(x2)") | torchrun(1, 2, 1, 0, 1), 2, "torchrun"),
        # mpirun in an allocation starts its daemons with srun.
        (srun(1, 2, 1, 0, "1(x2)") | open_mpi(5, 8, "b", 1, 4), 8, "Open MPI"),
        (batch_script(8, 2) | mpich(5, 8, "b", 1, 4), 8, "MPICH's Hydra"),
        (srun(1, 2, 1, 0, "1(x2)") | mpich(1, 2, "b", 0, 1), 2, "MPICH's Hydra"),
        # A script that exports torch's variables for init_process_group.
        (srun(5, 8, 1, 1, "4(x2)") | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 8, "Slurm"),
        (open_mpi(5, 8, "b", 1, 4) | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 8, "Open MPI"),
        # Processes that a batch script, or one task of srun, starts by itself.
        (batch_script(4, 1), 4, None),
        (srun(0, 1, 0, 0, "1"), 4, None),
        (torchrun(0, 1, 0, 0, 1), 4, None),
        # torchrun whose variables a process inherits that mpirun started.
        (torchrun(0, 1, 0, 0, 1) | open_mpi(3, 4, "a", 3, 4), 4, "Open MPI"),
    ],
)
def test_the_innermost_launcher_is_believed(environment: Environment, world_size: int, launcher: str | None) -> None:
    claim = innermost_claim(environment, world_size)
    assert (claim and claim.launcher) == launcher


@pytest.mark.parametrize(
    ("environment", "name", "values"),
    [
        (torchrun(5, 8, 1, 1, 4), "GROUP_RANK", ["x", "-1", "1.0"]),  # left with "LOCAL_WORLD_SIZE"
        (torchrun(5, 8, 1, 1, 4), "RANK", ["", "x", "-1", "8", "5 ", "9999999999"]),
        (torchrun(5, 8, 1, 1, 4), "WORLD_SIZE", ["", "8.0"]),
        (torchrun(5, 8, 1, 1, 4), "LOCAL_WORLD_SIZE", ["", "0", "9"]),
        (open_mpi(1, 8, "b", 0, 1), "OMPI_COMM_WORLD_LOCAL_SIZE", ["", "0", "9"]),
        (mpich(1, 8, "b", 0, 1), "MPI_LOCALNRANKS", ["", "0", "9"]),
        (srun(5, 8, 1, 1, "4(x2)"), "SLURM_NODEID", ["", "2", "x"]),
        (srun(5, 8, 1, 1, "4(x2)"), "SLURM_STEP_TASKS_PER_NODE", ["", "4", "4(x", "4(x2),", "0(x2)"]),
        (srun(5, 8, 1, 1, "4(x2)"), "SLURM_STEP_NUM_TASKS", ["", "5"]),
    ],
)
def test_what_no_launcher_sets_so_is_no_claim(environment: Environment, name: str, values: list[str]) -> None:
    for value in values:
        claim = innermost_claim({**environment, name: value}, 8)
        assert claim is None or (name == "GROUP_RANK" and claim.node is None), value
    assert innermost_claim(environment, 8) is not None


@given(
    st.dictionaries(
        st.sampled_from(sorted(set(VARIABLES))), st.sampled_from(["0", "1", "4", "", "x", "4(x2)"]) | st.text()
    )
)
def test_any_environment_is_read(environment: Environment) -> None:
    claim = innermost_claim(environment, 4)
    assert claim is None or (claim.size == 4 and 0 <= claim.rank < 4)
    assert claim is None or (claim.node_size is None if claim.launcher == "PRRTE" else 1 <= (claim.node_size or 0) <= 4)
    told = launched_as(environment)
    assert told is None or innermost_claim(environment, told.size) == told


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("1,2,1(x3),3", [1, 2, 1, 1, 1, 3]),
        *((text, []) for text in ("", ",", "4,,3", "4 ", "4(2)", "-4", "4(x999999999)", "1(x1048576),1")),
        ("1(x1048576)", [1] * 1048576),
    ],
)
def test_tasks_per_node(text: str, tasks: list[int]) -> None:
    assert tasks_per_node(text) == tasks


TWO_ON_ONE_HOST = {
    "torchrun": [torchrun(rank, 2, 0, rank, 2) | {"MASTER_ADDR": "127.0.0.1"} for rank in range(2)],
    "Open MPI": [open_mpi(rank, 2, "a", rank, 2) for rank in range(2)],
    "MPICH 4": [mpich(rank, 2, "a", rank, 2) for rank in range(2)],
    "MPICH 5": [mpich_5(rank, 2, "a", rank, 2) for rank in range(2)],
    "Intel MPI": [intel_mpi(rank, 2, "a", rank, 2) for rank in range(2)],
    "PRRTE": [prterun(rank, "a") | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"} for rank in range(2)],
    "Slurm": [srun(rank, 2, 0, rank, "2") for rank in range(2)],
    "by hand": [{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"} for rank in range(2)],
}
#: On two hosts, where the launcher says nothing of rank 0's.
ONE_ON_EACH = [
    open_mpi(1, 2, "b", 0, 1),
    mpich(1, 2, "b", 0, 1),
    mpich_5(1, 2, "b", 0, 1),
    intel_mpi(1, 2, "b", 0, 1),
    prterun(1, "b") | {"WORLD_SIZE": "2"},
    {"RANK": "1", "WORLD_SIZE": "2"},
]


@pytest.mark.parametrize("launcher", TWO_ON_ONE_HOST)
def test_processes_of_one_host_meet_there(launcher: str) -> None:
    for rank, environment in enumerate(TWO_ON_ONE_HOST[launcher]):
        found = environment | rendezvous(environment, "it", "")
        meeting = (str(rank), "2", "127.0.0.1", "20007" if launcher == "Slurm" else "29500")
        assert tuple(found[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")) == meeting
        assert rendezvous(environment | {"MASTER_ADDR": "b", "MASTER_PORT": "1"}, "it", "").keys() <= {
            "RANK",
            "WORLD_SIZE",
        }


@pytest.mark.parametrize("environment", ONE_ON_EACH, ids=str)
def test_processes_of_several_hosts_need_an_address(environment: Environment) -> None:
    with pytest.raises(ValueError, match=r"^it: .+ does not say where rank 0 is: set MASTER_ADDR"):
        rendezvous(environment, "it", "")
    assert "MASTER_ADDR" not in rendezvous(environment | {"MASTER_ADDR": "a"}, "it", "")


def test_slurm_says_where_rank_0_is(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["node0"]

    def look_up(host: str, port: None) -> None:
        if host not in known:
            raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    task = srun(3, 4, 1, 1, "2(x2)")
    assert rendezvous(task, "it", "")["MASTER_ADDR"] == "node0"
    known.clear()
    with pytest.raises(ValueError, match="'node0', the first of SLURM_STEP_NODELIST, is no name of a host here"):
        rendezvous(task, "it", "")
    assert "MASTER_ADDR" not in rendezvous(task | {"MASTER_ADDR": "a"}, "it", "")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node0", "node0"),
        ("node[0-1]", "node0"),
        ("node[007,009-012],gpu1", "node007"),
        ("a,b[1-2]", "a"),
        ("rack[0-3]node[07,09-12]-ib,x", "rack0node07-ib"),
        ("", ""),
    ],
)
def test_the_first_of_slurms_hosts(text: str, host: str) -> None:
    assert first_host(text) == host


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({}, "no launcher started this process.* as in `srun.*looked for RANK, .*PMI_RANK, SLURM_PROCID, PMIX_RANK"),
        (batch_script(4, 2), "no launcher started this process"),
        ({"RANK": "0"}, "no launcher started this process"),
        (prterun(0, "a"), "PRRTE tells no process how many there are: set WORLD_SIZE, as in `prterun"),
    ],
)
def test_what_was_looked_for_is_told(environment: Environment, complaint: str) -> None:
    with pytest.raises(ValueError, match="^it: " + complaint):
        rendezvous(environment, "it", "srun train.py")


def test_uneven_nodes_are_advised_by_their_launcher() -> None:
    assert uneven([1, 3], "Slurm") == (
        "nodes have 1 to 3 ranks, by Slurm; start as many on each, as with srun's --ntasks-per-node"
    )
    assert uneven([1, 3], "torchrun, though it rains").endswith("as with the same --nproc-per-node everywhere")
    assert re.search("--nproc-per-node .* or srun's --ntasks-per-node", uneven([1, 3], "boot id"))


def as_launched(rank: int, world_size: int, environments: list[Environment]) -> tuple[int, int, float]:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        del os.environ[name]
    os.environ.update(environments[rank])
    ranks.init("isthmus", init_method="isthmus://")
    total = torch.ones(())
    dist.all_reduce(total)
    found = dist.get_rank(), dist.get_world_size(), total.item()
    dist.destroy_process_group()
    return found


@pytest.mark.processes
def test_torch_meets_as_launched() -> None:
    environments = TWO_ON_ONE_HOST["Slurm"][::-1]  # no rank is the process's own number
    assert ranks.run(as_launched, 2, environments) == [(1, 2, 2.0), (0, 2, 2.0)]


def test_rank_and_size_are_the_launchers() -> None:
    with pytest.raises(ValueError, match=r"isthmus://.*from the launcher: leave them out"):
        dist.init_process_group("isthmus", init_method="isthmus://", rank=0, world_size=1)
