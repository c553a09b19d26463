"""The GPUs of simulated nodes: which rank takes which, and how ranks share them. As a program: tries them all."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from isthmus.base import native
from isthmus.benchmarks.simulate.mps import Mps, open_mps
from isthmus.group.cuda import find_gpu, why_no_gpu
from isthmus.group.nodes.islands import find_island, instead
from isthmus.group.nodes.node_map import ranks_by_value

_TRY_TIMEOUT_S = 120
_OTHERWISE = "--device cpu trains on CPUs over Gloo"
# Nodes are on one machine, and what joins them is to be the link alone.
_SOCKETS = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
_ISLANDS = "islands"


@dataclass(frozen=True)
class Gpus:
    """What ranks on GPUs are started with. visible: the GPUs, as CUDA_VISIBLE_DEVICES has them."""

    visible: Sequence[str]
    ranks_per_node: int
    mps: Mps
    #: Which, and how they are shared, for people.
    description: str
    #: Whether nodes are islands, over the links that they have.
    are_islands: bool = False

    def environment(self, rank: int) -> dict[str, str]:
        """A node's GPUs are the first that its ranks see, of which each takes the one of its index in the node.

        They see the others, too: nothing else is to differ from a node of its own.
        """
        index = rank // self.ranks_per_node * self.ranks_per_node % len(self.visible)
        own = {"CUDA_VISIBLE_DEVICES": ",".join([*self.visible[index:], *self.visible[:index]])}
        if self.are_islands:
            return own
        # NCCL takes no GPU twice on one host, and joins by the network what has different ones.
        shares_in_node = self.ranks_per_node > len(self.visible)
        host = f"rank-{rank}" if shares_in_node else f"node-{rank // self.ranks_per_node}"
        return {**_SOCKETS, **self.mps.environment, **own, "NCCL_HOSTID": f"isthmus-{host}"}


def choose_device(asked: str) -> str:
    """Return "cpu" or "cuda". ValueError: a GPU was asked for, or is there, and cannot be used."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return "cpu"
    missing = why_no_gpu()
    if missing:
        raise ValueError(f"--device {asked}: {missing}; {_OTHERWISE}")
    return "cuda"


def default_ranks_per_node(nodes: int, most: int) -> int:
    """As many as give each rank a GPU of its own; one where there are too few."""
    return min(most, max(1, torch.cuda.device_count() // nodes))


@contextmanager
def open_gpus(nodes: int, ranks_per_node: int) -> Iterator[Gpus]:
    """Yield the GPUs of so many ranks, tried. No setting of them is touched, and no daemon outlives the context.

    ValueError: one cannot be used, or not by as many ranks.
    """
    visible = _all_visible()[: nodes * ranks_per_node]
    is_shared = nodes * ranks_per_node > len(visible)
    with ExitStack() as stack:
        mps = stack.enter_context(open_mps()) if is_shared else Mps()
        try:
            kinds = _try_all(visible, mps)
        except ValueError as error:
            if not mps.is_own:
                raise
            stack.close()
            mps = Mps(missing=f"under MPS {error}")
            kinds = _try_all(visible, mps)
        if is_shared and mps.missing:
            _check_may_be_shared(mps.missing)
        yield Gpus(visible, ranks_per_node, mps, _description(kinds, nodes * ranks_per_node, mps))


def find_islands(asked: str) -> Gpus:
    """Return this machine's GPUs, node by node: its islands, or as ISTHMUS_NODES says. asked: the device.

    ValueError: there are no GPUs, one cannot be used, or they make no nodes of equal size.
    """
    if choose_device(asked) != "cuda":
        raise ValueError(f"--islands: they are of GPUs: device '{asked}', and torch sees no GPU that it may take")
    visible = _all_visible()
    asked_nodes = os.environ.get("ISTHMUS_NODES", "")
    if asked_nodes in ("", _ISLANDS):
        told = [line.split("\t") for line in _try_all(visible, Mps(), _ISLANDS)]
        kinds, node_of_gpu = [kind for kind, _, _ in told], [island for _, island, _ in told]
        if text := instead([node_of_gpu.count(island) for island in dict.fromkeys(node_of_gpu)]):
            raise ValueError(f"--islands: {text}")
        by = f"islands by {told[0][2]}"
    else:
        kinds, node_of_gpu = _try_all(visible, Mps()), native.load().parse_nodes(asked_nodes, len(visible))
        by = f"nodes by ISTHMUS_NODES={asked_nodes}"
    nodes = [[visible[index] for index in node] for node in ranks_by_value(range(len(visible)), node_of_gpu).values()]
    if len(nodes) < 2 or len({*map(len, nodes)}) > 1:
        raise ValueError(f"--islands: {by}: {len(nodes)} of {len(visible)} GPUs: expected two or more of equal size")
    ordered = [gpu for node in nodes for gpu in node]
    kind = _description(kinds, len(visible), Mps())
    return Gpus(ordered, len(nodes[0]), Mps(), f"{kind}, {len(nodes)} {by}", are_islands=True)


def _all_visible() -> list[str]:
    """The GPUs as CUDA_VISIBLE_DEVICES has them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count()
    return given.split(",")[:count] if given else [str(index) for index in range(count)]


def _description(kinds: Sequence[str], num_ranks: int, mps: Mps) -> str:
    gpus = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    if num_ranks == len(kinds):
        return f"{gpus}, one a rank"
    if mps.missing:
        turns = f"on which {num_ranks} ranks take turns of about 2 ms, which dominate the times"
        return f"{gpus}, {turns} (no MPS: {mps.missing})"
    return f"{gpus}, shared by {num_ranks} ranks under MPS{'' if mps.is_own else ' that was running'}"


def _try_all(visible: Sequence[str], mps: Mps, *words: str) -> list[str]:
    """Return the names of the GPUs, each of which has computed something. In a process of its own, which frees them.

    words: "islands": behind each name a tab and its island, a tab and what joins its GPUs.
    """
    env = {**os.environ, **mps.environment, "CUDA_VISIBLE_DEVICES": ",".join(visible)}
    try:
        tried = subprocess.run(
            [sys.executable, "-m", __name__, *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=_TRY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"--device cuda: no answer from the GPUs within {_TRY_TIMEOUT_S} s; {_OTHERWISE}") from None
    if tried.returncode:
        why = (tried.stdout.splitlines() or tried.stderr.splitlines() or [f"exit code {tried.returncode}"])[-1]
        raise ValueError(f"--device cuda: torch cannot use the GPUs: {why}; {_OTHERWISE}")
    return tried.stdout.splitlines()


def _check_may_be_shared(why_no_mps: str) -> None:
    """Raise ValueError if a GPU takes one process alone; only MPS would let it take more."""
    query = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    try:
        modes = subprocess.run(query, capture_output=True, text=True, timeout=_TRY_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return  # ranks will tell
    exclusive = [mode for mode in modes.split() if mode != "Default"]
    if exclusive:
        raise ValueError(
            f"--device cuda: there are fewer GPUs than ranks, and their mode, {exclusive[0]}, lets one process in; MPS "
            f"would let more (no MPS: {why_no_mps}); {_OTHERWISE}"
        )


def _main() -> int:
    for index in range(torch.cuda.device_count()):
        try:
            torch.ones(1 << 10, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            print(f"GPU {index}: {str(error).splitlines()[0]}")
            return 1
    for index in range(torch.cuda.device_count()):
        gpu = find_gpu(torch.device("cuda", index))
        try:
            island = find_island(gpu.bus_id, gpu.is_slice) if _ISLANDS in sys.argv else ()
        except ValueError as error:
            print(error)
            return 1
        print(torch.cuda.get_device_name(index), *island, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
