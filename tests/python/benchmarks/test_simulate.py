"""Simulated nodes: they come, are shaped and counted, and go; ranks on them answer, and fail with a name."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe

import psutil
import pytest

from isthmus.benchmarks.simulate.network import NamespaceNetwork, Network, NetworkError, open_network, parse_link_rate
from isthmus.benchmarks.simulate.ranks import RankFailure, RankWorld, _Rank, ignore
from support.limits import HANG_S, scaled
from support.places import PYTHONPATH

TRANSFER_BYTES = 4 << 20

RECEIVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000)); print("listening", flush=True)
peer, _ = server.accept(); total = 0
while chunk := peer.recv(1 << 20): total += len(chunk)
print(total)
"""
SEND = """
import socket, sys
socket.create_connection((sys.argv[1], 5000)).sendall(bytes(int(sys.argv[2])))
"""
OPEN_AND_WAIT = """
import sys, time
from isthmus.benchmarks.simulate.network import NamespaceNetwork
network = NamespaceNetwork(3, sys.argv[1])
print(*(holder.pid for holder in network._holders), flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["root", "user"])
def rights(request):
    try:
        NamespaceNetwork(2, request.param).close()
    except NetworkError as error:
        pytest.skip(f"no namespaces as {request.param} here: {error}")
    return request.param


def on_node(network, node, code, *arguments):
    return [*network.command_prefix(node), sys.executable, "-c", code, *map(str, arguments)]


def transfer(network, sender, receiver):
    address = network.address(receiver)
    with subprocess.Popen(on_node(network, receiver, RECEIVE, address), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "listening\n"
        subprocess.run(on_node(network, sender, SEND, address, TRANSFER_BYTES), timeout=HANG_S, check=True)
        return int(server.communicate(timeout=HANG_S)[0])


def network_namespace(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


def wait_until_gone(pids):
    deadline_s = time.monotonic() + HANG_S
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline_s, f"still there: {[pid for pid in pids if psutil.pid_exists(pid)]}"
        time.sleep(0.05)


def qdiscs(network):
    words = [
        [*network.command_prefix(holder), "tc", "qdisc", "show", "dev", name] for holder, name in network._shaped_ends
    ]
    return [subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in words]


@pytest.mark.processes
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_links_are_shaped_at_both_ends_and_count_what_a_node_sends(rights, num_nodes):
    with NamespaceNetwork(num_nodes, rights) as network:
        network.shape("200mbit")
        assert len(qdiscs(network)) == (2 if num_nodes == 2 else 2 * num_nodes)
        assert all("tbf" in text and "rate 200Mbit" in text for text in qdiscs(network))
        network.shape("1gbit")
        assert all("rate 1Gbit" in text for text in qdiscs(network))
        before = [network.sent_bytes(node) for node in range(num_nodes)]
        assert transfer(network, sender=num_nodes - 1, receiver=0) == TRANSFER_BYTES
        sent = [network.sent_bytes(node) - start for node, start in enumerate(before)]
        network.shape(None)
        network.shape(None)
        assert not any("tbf" in text for text in qdiscs(network))
    assert TRANSFER_BYTES < sent[-1] < 1.05 * TRANSFER_BYTES
    assert all(num_bytes < 0.05 * TRANSFER_BYTES for num_bytes in sent[:-1])


@pytest.mark.processes
def test_every_node_has_a_namespace_of_its_own_that_goes_with_it(rights):
    with NamespaceNetwork(8, rights) as network:
        pids = [holder.pid for holder in network._holders]
        namespaces = {network_namespace(pid) for pid in pids}
        assert len(pids) == 9  # the bridge has one as well
        assert len(namespaces) == 9
        assert network_namespace("self") not in namespaces
    wait_until_gone(pids)
    network.close()


@pytest.mark.processes
def test_killing_the_launcher_leaves_nothing(rights):
    words = [sys.executable, "-c", OPEN_AND_WAIT, rights]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(pids) == 4
        assert all(psutil.pid_exists(pid) for pid in pids)
        launcher.kill()
    wait_until_gone(pids)


@pytest.mark.processes
def test_without_rights_or_tools_nodes_share_the_loopback_with_a_reason(monkeypatch):
    for num_nodes in (0, 9):
        with pytest.raises(ValueError, match=f"{num_nodes} nodes: expected 1 to 8"):
            open_network(num_nodes)
    assert not open_network(2, rights=()).has_links
    monkeypatch.setenv("PATH", "/nonexistent")
    network = open_network(2)
    assert "not installed: unshare" in network.description
    with pytest.raises(NetworkError, match="no links to shape"):
        network.shape("50mbit")
    with pytest.raises(NetworkError, match="no links to count"):
        network.sent_bytes(0)


@pytest.mark.parametrize(("text", "rate"), [("200mbit", 200e6), ("1.5gbit", 1.5e9), ("100kbit", 1e5)])
def test_parse_link_rate(text, rate):
    assert parse_link_rate(text) == rate


@pytest.mark.parametrize("text", ["", "200", "-1mbit", "200MBIT", "99kbit", "101gbit"])
def test_a_bad_link_rate_is_named(text):
    with pytest.raises(ValueError, match=f"link rate '{text}'"):
        parse_link_rate(text)


def process_ids(world):
    return [rank.process.pid for rank in world._ranks]


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    network = Network(2, "test")
    with RankWorld(network, 2, "python.benchmarks.rank_under_test", tmp_path) as world:
        pids = process_ids(world)
        world.request("echo", HANG_S, value=0)  # all have started
        yield world
    wait_until_gone(pids)


@pytest.mark.processes
def test_ranks_answer_in_order_and_the_first_emits_events(world):
    events = []
    answers = world.request("echo", HANG_S, events.append, value=5)
    assert [answer["rank"] for answer in answers] == [0, 1, 2, 3]
    assert {answer["nodes"] for answer in answers} == {"2x2"}
    assert events == [{"saw": 5, "rank": 0}]
    assert world.request("echo", HANG_S, value=6)[3]["value"] == 6


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "ValueError: the cause"), ("kill", "killed by SIGKILL"), ("exit", "exit code 7")],
)
def test_the_rank_that_failed_first_is_named(world, how, reason):
    with pytest.raises(RankFailure) as failure:
        world.request("fail", HANG_S, rank=2, how=how)
    text = str(failure.value)
    assert text.startswith(f"rank 2 (node 1, local index 0) failed in 'fail': {reason}")
    assert "after it also rank 0, 1, 3" in text
    assert "  | last words\n" in text


@pytest.mark.processes
def test_a_rank_that_says_all_is_told_in_one_line(world):
    with pytest.raises(RankFailure, match=r"^rank 2 \(node 1, local index 0\) failed in 'fail': the GPU is full$"):
        world.request("fail", HANG_S, rank=2, how="say all")


def test_a_rank_that_is_killed_within_a_message_has_ended():
    connection, of_rank = Pipe()
    os.write(of_rank.fileno(), b"\0\0\0\x08half")
    of_rank.close()
    rank = _Rank(0, None, connection, None)
    rank.take_message(ignore)
    assert rank.ended


@pytest.mark.processes
def test_ranks_without_an_answer_are_named_beside_the_one_that_failed(world):
    with pytest.raises(RankFailure, match=r"(?s)rank 1 .*the cause.*no answer from rank 0, 2, 3"):
        world.request("fail", HANG_S, rank=1, how="raise", peers_wait=True)


@pytest.mark.processes
def test_silent_ranks_are_named(world):
    os.kill(process_ids(world)[3], signal.SIGSTOP)
    patience_s = scaled(4)  # the others answer within milliseconds
    with pytest.raises(RankFailure, match=rf"'echo': no word for {patience_s:.0f} s, no answer from rank 3$"):
        world.request("echo", patience_s, value=1)


@pytest.mark.processes
def test_a_rank_that_died_between_commands_is_named(world):
    os.kill(process_ids(world)[1], signal.SIGKILL)
    with pytest.raises(RankFailure, match=r"rank 1 .*killed by SIGKILL"):
        world.request("echo", HANG_S, value=1)
