"""A job under torchft on simulated nodes: a lighthouse, and members that may be started again."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from isthmus.benchmarks.simulate.network import Network

_PORT = 29510


class ElasticJob:
    """Members on the first nodes of a network, and the lighthouse on the last one.

    member: words that start one, before its number, its address and the lighthouse's. What they print goes to folder.
    A context manager: leaving it kills all of them.
    """

    def __init__(
        self,
        network: Network,
        folder: Path,
        member: Sequence[str],
        heartbeat_timeout_s: float,
    ) -> None:
        self._network = network
        self._folder = folder
        self._member = member
        self._heartbeat_timeout_ms = int(1000 * heartbeat_timeout_s)
        self.members: dict[int, subprocess.Popen[bytes]] = {}
        self.start_lighthouse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in [*self.members.values(), self.lighthouse]:
            process.kill()
            process.wait()

    def start_lighthouse(self) -> None:
        """Start the lighthouse, for the first time or after it has ended."""
        command = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--bind", f"0.0.0.0:{_PORT}"]
        limits = {"min_replicas": 1, "quorum_tick_ms": 50, "join_timeout_ms": 2 * self._heartbeat_timeout_ms}
        limits["heartbeat_timeout_ms"] = self._heartbeat_timeout_ms
        options = [word for name, value in limits.items() for word in (f"--{name}", str(value))]
        self.lighthouse = self._start(self._lighthouse_node, [*command, *options], "lighthouse")

    def start(self, number: int) -> None:
        """Start a member, for the first time or after it has ended."""
        lighthouse = f"http://{self._network.address(self._lighthouse_node)}:{_PORT}"
        command = [*self._member, str(number), self._network.address(number), lighthouse]
        self.members[number] = self._start(number, command, f"member{number}")

    @property
    def _lighthouse_node(self) -> int:
        return self._network.num_nodes - 1

    def _start(self, node: int, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        own = {"GLOO_SOCKET_IFNAME": self._network.interface, "OMP_NUM_THREADS": "1", "RUST_LOG": "warn"}
        words = [*self._network.command_prefix(node), *command]
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(words, env=os.environ | own, stdout=log, stderr=log)
