"""The ranks that a launcher started as what a benchmark runs on: every rank runs the same benchmark, and answers it."""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from rich.console import Console
from torch.distributed.distributed_c10d import PrefixStore

import isthmus
from isthmus.base.backends import backend_of
from isthmus.base.job import refuse
from isthmus.benchmarks.common.report import print_machine
from isthmus.benchmarks.common.stage import Join, RankDevice, Stage, plain_backend
from isthmus.benchmarks.here.cluster import (
    Member,
    check_alike,
    check_nodes,
    choose_device,
    count_on,
    gpu_index,
)
from isthmus.benchmarks.here.config import HereConfig
from isthmus.benchmarks.here.nics import find_counter
from isthmus.benchmarks.simulate import gpus
from isthmus.benchmarks.simulate.network import SIMULATED_RANGES, Network, open_network
from isthmus.benchmarks.simulate.ranks import RankFailure, RankWorld, ignore
from isthmus.benchmarks.simulate.serve import Emit
from isthmus.group.cuda import ask_for_connections, find_gpu
from isthmus.group.meeting import meet
from isthmus.group.nodes.launchers import rendezvous
from isthmus.group.nodes.node_map import machine_identity

A = TypeVar("A", bound=HereConfig)
MakeWorker = Callable[[Join], object]


def tells() -> bool:
    """Whether this rank prints and writes the results; to be asked inside `open_stage` or after it."""
    return os.environ["RANK"] == "0"


@contextmanager
def open_stage(
    arguments: A, command: str, worker: ModuleType, log_dir: Path, console: Console
) -> Iterator[tuple[A, Stage]]:
    """Print the machine; yield what a benchmark runs on, as its arguments say, and these with nodes, ranks and device.

    command: the benchmark's, for messages. worker: the module of its ranks, with a class `Worker(join)`. log_dir: of
    simulated nodes: no process, namespace or daemon of them outlives the context.

    With --here it is collective over the launcher's ranks: each runs the context's body alike, and its own worker does
    what the body asks. On ranks other than the first the console is silent from then on. Raises ValueError on a rank
    that cannot join, RankFailure where the ranks do not meet. Then what a user can set right ends all ranks, told by
    the first. Any other error is printed with the rank's name, and ends the process: groups in an unknown state must
    not be waited for.
    """
    if not arguments.here:
        print_machine(console)
        opened: AbstractContextManager[gpus.Gpus | None] = nullcontext()
        if arguments.islands:
            own = gpus.find_islands(arguments.device)
            nodes, per_node = len(own.visible) // own.ranks_per_node, own.ranks_per_node
            found = replace(arguments, device="cuda", nodes=nodes, ranks_per_node=per_node).on_device()
            network, opened = Network(nodes, "this machine's links"), nullcontext(own)
        else:
            found = _on_gpus_or_cpu(arguments).on_device()
            network = open_network(found.nodes)
            if found.device == "cuda":
                opened = gpus.open_gpus(found.nodes, found.ranks_per_node)
        with network, opened as shared:
            of_rank = shared.environment if shared else lambda rank: {}
            with RankWorld(network, found.ranks_per_node, worker.__name__, log_dir, of_rank) as world:
                description = f"{network.description}, {shared.description}" if shared else network.description
                shape = network.shape if network.has_links else None
                yield found, Stage(world.request, description, network.has_links, shape)
        return
    example = f"torchrun --nnodes 2 --nproc-per-node 8 ... -m isthmus bench {command} --here"
    os.environ.update(rendezvous(os.environ, "--here", example))
    _join(arguments)
    try:
        filled, stage = _set_up(arguments, worker.Worker)
        found = filled.on_device()
    except ValueError as error:
        refuse(error)
    except BaseException as error:
        _end_process(error)
    console.quiet = not tells()
    print_machine(console)
    try:
        yield found, stage
    except BaseException as error:
        _end_process(error)
    _leave()


def _on_gpus_or_cpu(arguments: A) -> A:
    """Choose the device of simulated nodes, and how many ranks each has."""
    device = gpus.choose_device(arguments.device) if arguments.simulates_gpus else "cpu"
    if device == "cpu" or not arguments.is_default("ranks_per_node"):
        return replace(arguments, device=device)
    most = SIMULATED_RANGES["ranks_per_node"][1]
    return replace(arguments, device=device, ranks_per_node=gpus.default_ranks_per_node(arguments.nodes, most))


def _join(arguments: HereConfig) -> None:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=arguments.timeout_s)
    # Under torchrun an agent hosts the store.
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        host = dist.TCPStore(  # type: ignore[attr-defined]  # torch's stubs do not export it
            address, port, None, is_host, timeout, wait_for_workers=False, multi_tenant=True
        )
        store, _ = meet(PrefixStore("here", host), range(size), rank, "", timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    except RuntimeError as error:  # all of torch's are
        raise RankFailure(
            f"--here: rank {rank} of {size} did not meet the others at {address}:{port}: {error}"
        ) from error


def _leave() -> None:
    dist.barrier()  # the store ends with the rank that hosts it
    dist.destroy_process_group()


def _end_process(error: BaseException) -> NoReturn:
    traceback.print_exc()
    if isinstance(error, KeyboardInterrupt):
        print(f"isthmus: rank {os.environ['RANK']} was interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    reason = f"rank {os.environ['RANK']} on {socket.gethostname()} failed: {type(error).__name__}: {error}"
    print(f"isthmus: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def _set_up(arguments: A, make_worker: MakeWorker) -> tuple[A, Stage]:
    counter = find_counter()
    members: list[Member] = _gather(_introduce(arguments, counter is not None))
    rank = dist.get_rank()
    check_alike(members)
    device = choose_device(arguments.device, members)
    if device == "cuda":
        ask_for_connections()
        torch.cuda.set_device(gpu_index(rank, members))
    nodes, ranks_per_node, source = _find_nodes(arguments, members)
    place = RankDevice(device, counter if count_on(rank, members) else None)
    worker = make_worker(lambda *_: place)

    def request(name: str, silence_timeout_s: float, on_event: Emit = ignore, **arguments: Any) -> list[Any]:
        """The process groups' own timeout ends a wait for a silent rank."""
        return _gather(getattr(worker, name)(on_event, **arguments))

    stage = Stage(
        request=request,
        description=f"nodes by {source}, {device} over {plain_backend(device)}",
        counts_links=all(member.nics_count for member in members),
        shape=None,
    )
    return replace(arguments, nodes=nodes, ranks_per_node=ranks_per_node, device=device), stage


def _introduce(arguments: HereConfig, nics_count: bool) -> Member:
    gpu = find_gpu()
    return Member(
        arguments=asdict(arguments) | {"version of torch": torch.__version__},
        host=socket.gethostname(),
        machine=machine_identity(),
        no_gpu=gpu.missing,
        num_gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        nics_count=nics_count,
    )


def _find_nodes(arguments: HereConfig, members: list[Member]) -> tuple[int, int, str]:
    """Take the node map that Isthmus finds by itself, as its groups in the benchmark will."""
    options = isthmus.Options(log="error")  # what is wrong with the map is said here
    timeout = timedelta(seconds=arguments.timeout_s)
    group = dist.new_group(backend="isthmus", timeout=timeout, pg_options=options)
    assert isinstance(group, dist.ProcessGroup)  # all ranks are in it
    node_of_rank = list(backend_of(group).node_of_rank)
    source = isthmus.stats(group)["node_map_source"]
    dist.barrier()  # a rank that still connects to others must find them
    dist.destroy_process_group(group)
    return (*check_nodes(node_of_rank, source, members), source)


def _gather(own: Any) -> list[Any]:
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, own)
    return everything
