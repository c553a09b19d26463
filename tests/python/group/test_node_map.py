"""Where nodes come from: sources in their order, what they say together, what is not believed; and how ranks meet."""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from isthmus import _topology
from isthmus.benchmarks.simulate.network import NamespaceNetwork, NetworkError
from isthmus.group.meeting import meet
from isthmus.group.nodes import node_map
from isthmus.group.nodes.launchers import Claim
from isthmus.group.nodes.node_map import FABRIC, MACHINE, OPTION, Nodes, Surroundings, choose, name_ranks, told_by_ranks
from support.limits import OPERATION_S, scaled


def claims(*nodes: str | None, launcher: str = "torchrun") -> list[Claim | None]:
    return [Claim(launcher, rank, len(nodes), node, nodes.count(node)) for rank, node in enumerate(nodes)]


def around(machines: str, told: Sequence[Claim | None] = (), fabrics: Sequence[str] = ()) -> list[Surroundings]:
    """One rank a letter of `machines`."""
    return [
        Surroundings(
            machine=name,
            claim=told[rank] if told else None,
            fabric=fabrics[rank] if fabrics else "",
        )
        for rank, name in enumerate(machines)
    ]


def chosen(surroundings: list[Surroundings], ranks: Sequence[int] | None = None, world_size: int = 0) -> Nodes:
    ranks = range(len(surroundings)) if ranks is None else ranks
    return choose(ranks, surroundings, world_size or len(ranks), describe=str)


def on_all(option: str) -> list[Surroundings]:
    return [replace(own, option=f"{option} {rank % 2}") for rank, own in enumerate(around("aaaa", claims(*"0000")))]


DOMAINS = ["x clique 1", "x clique 2", "x clique 1", "x clique 2"]
SOME = "reported an NVLink domain that spans hosts"
CHOICES = {
    "the option comes first": (on_all("node"), Nodes([0, 1, 0, 1], OPTION)),
    "an NVLink domain before launcher and machine": (
        around("abcd", claims(*"0123"), DOMAINS),
        Nodes([0, 1, 0, 1], FABRIC),
    ),
    "of one rank": (around("a", claims("0"), DOMAINS[:1]), Nodes([0], FABRIC)),
    "an NVLink domain that one does not see": (
        around("aabb", claims(*"0011"), ["x", "x", "", "x"]),
        Nodes([0, 0, 1, 1], "torchrun", f"only ranks 0, 1, 3 {SOME}"),
    ),
    "an NVLink domain that only one sees": (
        around("aab", fabrics=["", "x", ""]),
        Nodes([0, 0, 1], MACHINE, f"only rank 1 {SOME}"),
    ),
    # The launcher before the machine: in blocks, with other numbers, cyclic, any, uneven, one rank a node.
    **{
        nodes: (around(nodes, claims(*nodes)), Nodes(map_, "torchrun"))
        for nodes, map_ in {
            "0011": [0, 0, 1, 1],
            "1100": [0, 0, 1, 1],
            "0101": [0, 1, 0, 1],
            "0110": [0, 1, 1, 0],
            "0001": [0, 0, 0, 1],
            "0123": [0, 1, 2, 3],
        }.items()
    },
    # One that the machines contradict is believed and doubted: torchrun twice on a host, containers that share a host.
    "aaaa 0011": (
        around("aaaa", claims(*"0011")),
        Nodes([0, 0, 1, 1], "torchrun", f"by {MACHINE} it is [0, 0, 0, 0]"),
    ),
    "aabb 0000": (
        around("aabb", claims(*"0000")),
        Nodes([0, 0, 0, 0], "torchrun", f"by {MACHINE} it is [0, 0, 1, 1]"),
    ),
    "without a launcher the machines decide": (around("aba"), Nodes([0, 1, 0], MACHINE)),
    "names on some ranks only are ignored": (
        around("ab", [Claim("Open MPI", rank, 2, "host" if rank else None, 1) for rank in range(2)]),
        Nodes([0, 1], MACHINE),
    ),
}


@pytest.mark.parametrize("what", CHOICES)
def test_choices(what: str) -> None:
    told, nodes = CHOICES[what]
    assert chosen(told) == nodes


def test_subgroups_take_the_same_claims() -> None:
    told = around("aabb", claims(*"0011"))
    for ranks, map_ in [([0, 2], [0, 1]), ([1, 2, 3], [0, 1, 1]), ([3], [0]), ([3, 2, 0], [0, 0, 1])]:
        assert chosen([told[rank] for rank in ranks], ranks, world_size=4) == Nodes(map_, "torchrun")


@pytest.mark.parametrize("launcher", ["MPICH's Hydra", "LOCAL_WORLD_SIZE"])
def test_a_launcher_that_names_no_nodes_is_a_check(launcher: str) -> None:
    told: list[Claim | None] = [Claim(launcher, rank, 4, None, 2) for rank in range(4)]
    assert chosen(around("abab", told)) == Nodes([0, 1, 0, 1], MACHINE)
    assert chosen(around("abbb", told)) == Nodes([0, 1, 1, 1], MACHINE, f"{launcher} counts 2 on the node of rank 0")
    assert chosen(around("aaaa", told)).doubt == f"{launcher} counts 2 on the node of ranks 0, 1, 2, 3"
    # A member of a subgroup cannot miss the ranks that are no members, but notices one too many.
    assert chosen(around("ab", told[:2]), [0, 1], world_size=4) == Nodes([0, 1], MACHINE)
    assert chosen(around("aaa", told[:3]), [0, 1, 2], world_size=4).doubt.endswith("the node of ranks 0, 1, 2")


@pytest.mark.parametrize(
    ("told", "doubt"),
    [
        ([*claims(*"0011")[:3], None], "ranks 0, 1, 2 had torchrun; rank 3 had no known launcher"),
        ([None, *claims(*"0011")[1:]], "rank 0 had no known launcher; ranks 1, 2, 3 had torchrun"),
        (
            [*claims(*"0011")[:2], *claims(*"0011", launcher="Slurm")[2:]],
            "ranks 0, 1 had torchrun; ranks 2, 3 had Slurm",
        ),
        # Inherited from one process that the launcher started.
        ([claims(*"0000")[0]] * 4, "torchrun started only one of ranks 0, 1, 2, 3, as its rank 0"),
        # Two hosts of one name; a variable that was set by hand.
        (
            [Claim("Open MPI", rank, 4, "localhost", 2) for rank in range(4)],
            "Open MPI counts 2 on the node of ranks 0, 1, 2, 3",
        ),
        ([Claim("Slurm", rank, 4, str(rank), 2) for rank in range(4)], "Slurm counts 2 on the node of rank 0"),
        (
            [Claim("Slurm", rank, 4, "0", 4 - rank // 3) for rank in range(4)],
            "Slurm counts 3 on the node of ranks 0, 1, 2, 3",
        ),
    ],
)
def test_contradictory_claims_leave_the_decision_to_the_machines(told: list[Claim | None], doubt: str) -> None:
    assert chosen(around("abab", told)) == Nodes([0, 1, 0, 1], MACHINE, doubt)


def test_a_doubt_names_global_ranks() -> None:
    told = around("aab", [claims(*"01234567")[rank] for rank in (5, 6)] + [None])
    assert chosen(told, [5, 6, 7], world_size=8).doubt == "ranks 5, 6 had torchrun; rank 7 had no known launcher"
    twice = around("ab", [Claim("Slurm", 1, 8, str(node), 4) for node in range(2)])
    assert chosen(twice, [5, 6], world_size=8).doubt == "Slurm started only one of ranks 5, 6, as its rank 1"
    crowded = around("ab", [Claim("Slurm", rank, 8, "0", 1) for rank in range(2)])
    assert chosen(crowded, [5, 6], world_size=8).doubt == "Slurm counts 1 on the node of ranks 5, 6"


TEXTS = st.sampled_from(["", "a", "b"])
CLAIMS = st.builds(
    Claim,
    launcher=st.sampled_from(["torchrun", "Slurm"]),
    rank=st.integers(0, 3),
    size=st.just(4),
    node=st.none() | TEXTS,
    node_size=st.integers(1, 4),
)
SURROUNDINGS = st.builds(Surroundings, fabric=TEXTS, claim=st.none() | CLAIMS, machine=TEXTS)


@given(st.lists(SURROUNDINGS, min_size=1, max_size=6), st.sampled_from([1, 4, 6]))
def test_whatever_ranks_say_gives_a_map(told: list[Surroundings], world_size: int) -> None:
    nodes = chosen(told, world_size=world_size)
    assert len(nodes.node_of_rank) == len(told)
    assert nodes.node_of_rank == node_map.node_labels(nodes.node_of_rank)
    assert nodes.source in (FABRIC, "torchrun", "Slurm", MACHINE)
    if nodes.source == MACHINE:
        assert nodes.node_of_rank == node_map.node_labels([own.machine for own in told])


def test_the_origin_names_source_and_doubt() -> None:
    assert Nodes([0], "Slurm").origin == "Slurm"
    assert Nodes([0], "Slurm", "it rains").origin == "Slurm, though it rains"


def test_names_of_ranks() -> None:
    assert name_ranks([3]) == "rank 3"
    assert name_ranks(range(8)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert name_ranks(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize("own", [Surroundings(), Surroundings("", "x", Claim("Slurm", 1, 2, None, 1), "a")])
def test_surroundings_pass_through_the_store(own: Surroundings) -> None:
    assert Surroundings.from_json(json.loads(json.dumps(asdict(own)))) == own


def test_this_rank_looks_around(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1"}
    monkeypatch.setitem(sys.modules, "isthmus._topology", None)  # raises if imported
    claim = Claim("torchrun", 1, 2, "1", 1)
    assert node_map.look_around(environment, 2) == Surroundings(claim=claim, machine=node_map.machine_identity())
    assert node_map.look_around(environment, 3).claim is None


def test_the_fabric_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    buses = ["0000:00:00.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    told = {"fabrics": dict(zip(buses, (None, ("c", 1), ("c", 2)), strict=False))}
    monkeypatch.setattr(_topology, "nvml", lambda: told)
    assert [node_map.look_around({}, 1, bus).fabric for bus in buses] == ["", "c clique 1", "c clique 2", ""]


def test_this_machine_has_one_identity() -> None:
    assert node_map.machine_identity() == node_map.machine_identity() != ""


@pytest.mark.processes
def test_network_namespaces_are_machines_of_their_own() -> None:
    """As containers that share a host, but not its network."""
    try:
        network = NamespaceNetwork(2, "root")
    except NetworkError as error:
        pytest.skip(f"no namespaces here: {error}")
    show = [sys.executable, "-c", "from isthmus.group.nodes import node_map; print(node_map.machine_identity())"]
    with network:
        told = [
            subprocess.run([*network.command_prefix(node), *show], capture_output=True, text=True, check=True).stdout
            for node in (0, 0, 1)
        ]
    assert node_map.node_labels([*told, f"{node_map.machine_identity()}\n"]) == [0, 0, 1, 2]


def test_the_host_name_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(node_map.socket, "gethostname", lambda: "host")
    assert node_map.machine_identity() == "host"


def test_equal_identities_are_one_node_whatever_the_order() -> None:
    assert node_map.node_labels([]) == []
    assert node_map.node_labels(["a"]) == [0]
    assert node_map.node_labels(["b", "a", "b", "c", "a"]) == [0, 1, 0, 2, 1]


def test_complaints_name_their_ranks_unless_all_complain_of_one_thing() -> None:
    assert told_by_ranks(range(2), ["", ""]) == ""
    assert told_by_ranks(range(2), ["bits=99", "bits=99"]) == "bits=99"
    assert told_by_ranks(range(4), ["bits=99", "", "bits=99", "no"]) == "ranks 0, 2: bits=99; rank 3: no"
    assert told_by_ranks([3, 5], ["", "no"]) == "rank 5: no"


RANKS = [4, 5, 6]
ALL = range(len(RANKS))


def met(
    store: dist.Store, words: str, places: Sequence[int] = ALL, timeout_s: float = OPERATION_S
) -> list[tuple[int, list[bytes]]]:
    """Let some of the ranks come, each a thread; return how many had gone on before each, and what it was told."""

    def come(place: int) -> tuple[int, list[bytes]]:
        fresh, texts = meet(store, RANKS, place, f"{words} {place}", timedelta(seconds=timeout_s))
        return fresh.add("gone on", 1) - 1, texts

    with ThreadPoolExecutor() as threads:
        return sorted(threads.map(come, places))


@pytest.mark.parametrize("earlier", [[], [0], [1, 2], [0, 2]], ids=str)
def test_what_dead_ranks_left_misleads_nobody(earlier: list[int]) -> None:
    store = dist.HashStore()
    if earlier:
        with pytest.raises(dist.DistStoreError, match=r"did not come within"):
            met(store, "dead", earlier, scaled(0.2))
    for words in ("one", "two"):
        told = [f"{words} {place}".encode() for place in ALL]
        assert met(store, words) == [(place, told) for place in ALL]
