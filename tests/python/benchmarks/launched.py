"""Ranks as a launcher starts them, on two simulated hosts: `isthmus bench ... --here`."""

import os
import subprocess
import sys

import pytest

from support import hosts
from support.limits import HANG_S

RATE = "200mbit"


@pytest.fixture(scope="module")
def two_hosts():
    yield from hosts.two_hosts(RATE)


def on_hosts(network, starts):
    """Run one process for each (host, variables, words after `python -m`); returns (code, stdout, stderr) of each."""
    processes = []
    for host, variables, words in starts:
        own = {"GLOO_SOCKET_IFNAME": network.interface, "OMP_NUM_THREADS": "1", "COLUMNS": "400"} | variables
        processes.append(
            subprocess.Popen(
                [*network.command_prefix(host), sys.executable, "-m", *map(str, words)],
                env=os.environ | {name: str(value) for name, value in own.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [process.communicate(timeout=HANG_S) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, told, strict=True)]


def with_torchrun(network, ranks_per_host, *arguments):
    """Run `isthmus bench` under an agent of torchrun on each host."""
    agent = ["--nnodes", 2, "--nproc-per-node", ranks_per_host]
    agent += ["--master-addr", network.address(0), "--master-port", network.free_port()]
    bench = ["-m", "isthmus", "bench", *arguments]
    return on_hosts(
        network, [(host, {}, ["torch.distributed.run", *agent, "--node-rank", host, *bench]) for host in (0, 1)]
    )


def as_ranks(network, sizes, *arguments, of_rank=lambda rank: [], missing=(), **variables):
    """Run `isthmus bench` as ranks with torchrun's variables, sizes[host] on each.

    of_rank: their own arguments. missing: ranks that never start.
    """
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    meeting = {"MASTER_ADDR": network.address(0), "MASTER_PORT": network.free_port(), "WORLD_SIZE": len(hosts)}
    starts = []
    for rank, host in enumerate(hosts):
        own = {"RANK": rank, "GROUP_RANK": host, "LOCAL_WORLD_SIZE": sizes[host]}
        if rank not in missing:
            words = ["isthmus", "bench", *arguments, *of_rank(rank)]
            starts.append((host, variables | meeting | own, words))
    return on_hosts(network, starts)
