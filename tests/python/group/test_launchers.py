"""What launchers tell their processes: environments as each of them sets them, nested ones, and broken ones.

torchrun, Open MPI and MPICH: recorded from torch 2.11, Open MPI 4.1.4 and MPICH 4.0, on nodes made by a stand-in for
ssh. Slurm: as its sources set them (src/common/env.c and slurmstepd); the example of Slurm runs in one.
"""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.group.nodes.launchers import Claim, innermost_claim, launched_as, tasks_per_node

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
    return {
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "PMIX_HOSTNAME": host,
    }


def mpich(rank: int, size: int, host: str, local_rank: int, local_size: int) -> Environment:
    return {
        "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": host,
        "MPI_LOCALNRANKS": str(local_size),
        "MPI_LOCALRANKID": str(local_rank),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


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
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
    }


VARIABLES = torchrun(0, 1, 0, 0, 1) | open_mpi(0, 1, "", 0, 1) | mpich(0, 1, "", 0, 1) | srun(0, 1, 0, 0, "")


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
        (
            without(mpich(2, 3, "nodeb", 1, 2), "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"),
            3,
            Claim("MPICH's Hydra", 2, 3, None, 2),
        ),
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
    st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.sampled_from(["0", "1", "4", "", "x", "4(x2)"]) | st.text())
)
def test_any_environment_is_read(environment: Environment) -> None:
    claim = innermost_claim(environment, 4)
    assert claim is None or (claim.size == 4 and 0 <= claim.rank < 4 and 1 <= claim.node_size <= 4)
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
