"""Simulated nodes: where they are, how to run a command in one, how their links are shaped and counted."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

MAX_NODES = 8
#: The ranges of nodes, and of ranks on each, where there must be a link.
SIMULATED_RANGES = {"nodes": (2, MAX_NODES), "ranks_per_node": (1, 16)}

_TOOLS = ("unshare", "nsenter", "ip", "tc")
_COMMAND_TIMEOUT_S = 20
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_BITS_PER_S = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

Rights = Literal["root", "user"]


def parse_link_rate(text: str) -> float:
    """Return the bits per second that a rate such as "200mbit" names, in the units of `tc`.

    Raises ValueError, naming text and accepted form, for anything else and outside 100kbit ... 100gbit.
    """
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * _BITS_PER_S[match[2]] if match else 0.0
    if not 1e5 <= rate <= 1e11:
        raise ValueError(f"link rate '{text}': expected a number and kbit, mbit or gbit, from 100kbit to 100gbit")
    return rate


def link_rate_text(bits_per_s: float) -> str:
    """A rate as `parse_link_rate` takes it, in three digits: "9.04gbit"."""
    unit = "gbit" if bits_per_s >= _BITS_PER_S["gbit"] else "mbit"
    return f"{bits_per_s / _BITS_PER_S[unit]:.3g}{unit}"


def interfaces_sent_bytes(proc: Path = Path("/proc"), pid: int | str = "self") -> dict[str, int]:
    """Return what each interface that process `pid` sees has sent since it exists, headers included, by name.

    Read from /proc, which (unlike /sys) shows the network namespace of the process, not of the mount.
    """
    lines = [line.partition(":") for line in (proc / str(pid) / "net/dev").read_text().splitlines()]
    return {name.strip(): int(values.split()[8]) for name, colon, values in lines if colon}


class NetworkError(RuntimeError):
    """Simulated nodes could not be made, or one of their links could not be shaped."""


class Network:
    """Nodes that ranks can be started in. A context manager: leaving it removes whatever was made.

    Here all nodes share this machine's loopback interface: nothing is shaped, and link bytes cannot be told apart.
    """

    #: Each node has a link of its own that can be shaped and whose bytes the kernel counts.
    has_links = False
    #: The network interface of a node, as seen there: the same name on all.
    interface = "lo"

    def __init__(self, num_nodes: int, description: str) -> None:
        self.num_nodes = num_nodes
        #: How the nodes are simulated, for people.
        self.description = description

    def command_prefix(self, node: int) -> list[str]:
        """Words to put before a command so that it runs on `node`."""
        return []

    def address(self, node: int) -> str:
        """IPv4 address at which the other nodes reach `node`."""
        return "127.0.0.1"

    def free_port(self) -> int:
        """A free TCP port on node 0."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    def shape(self, rate: str | None) -> None:
        """Limit every node's link to `rate` ("200mbit") in both directions; None takes the limit away."""
        raise NetworkError(f"no links to shape: {self.description}")

    def sent_bytes(self, node: int) -> int:
        """Bytes that the link of `node` sent since it exists, headers included."""
        raise NetworkError(f"no links to count: {self.description}")

    def close(self) -> None:
        """Remove the nodes; processes that still run there keep their namespace alive until they end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NamespaceNetwork(Network):
    """Each node is an unnamed network namespace, kept by a holder process that ends when this process does.

    Two nodes are joined by one veth pair, more of them by a bridge in a namespace of its own. rights: "root" makes the
    namespaces directly, "user" inside a new user namespace. Raises NetworkError if that is not allowed here.
    """

    has_links = True
    interface = "eth0"

    def __init__(self, num_nodes: int, rights: Rights) -> None:
        where = " in a user namespace" if rights == "user" else ""
        super().__init__(num_nodes, f"{num_nodes} network namespaces{where}")
        self._rights = rights
        self._holders: list[subprocess.Popen[bytes]] = []
        # Holders read from this pipe. Nobody writes: they see its end when we close it, or die, even by SIGKILL.
        self._hold_read, self._hold_write = os.pipe()
        self._shaped_ends: list[tuple[int, str]] = []
        self._rate: str | None = None
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def command_prefix(self, node: int, network: bool = True) -> list[str]:
        """Words that enter the node's namespaces, then become the command: its process id stays that of the child.

        node: or the bridge, which comes after them. network: without it that of the user alone.
        """
        words = ["nsenter", "-t", str(self._holders[node].pid)]
        if self._rights == "user":
            words += ["-U", "--preserve-credentials"]
        if network:
            words += ["-n"]
        return [*words, "--"] if len(words) > 3 else []

    def address(self, node: int) -> str:
        """An address of a private range, known inside the namespaces only."""
        return f"10.83.0.{node + 1}"

    def free_port(self) -> int:
        """Any port: the namespace is ours alone."""
        return 29500

    def shape(self, rate: str | None) -> None:
        """Put a token bucket on both ends of every node's link, or remove it."""
        if rate is not None:
            parse_link_rate(rate)
        for holder, interface in self._shaped_ends:
            qdisc = ["tc", "qdisc", "replace" if rate else "del", "dev", interface, "root"]
            if rate:
                # 256k lets whole super-packets through, so that the interface counts close to the payload.
                self._run(holder, [*qdisc, "tbf", "rate", rate, "burst", "256k", "latency", "50ms"])
            elif self._rate:
                self._run(holder, qdisc)
        self._rate = rate

    def sent_bytes(self, node: int) -> int:
        """Read the counter of the node's interface."""
        return interfaces_sent_bytes(pid=self._holders[node].pid)[self.interface]

    def close(self) -> None:
        """End the holders. Safe to call twice."""
        for descriptor in (self._hold_write, self._hold_read):
            if descriptor >= 0:
                os.close(descriptor)
        self._hold_read = self._hold_write = -1
        for holder in self._holders:
            try:
                holder.wait(timeout=2)
            except subprocess.TimeoutExpired:
                holder.send_signal(signal.SIGKILL)
                holder.wait()
        self._holders.clear()

    def _make(self) -> None:
        for _ in range(self.num_nodes):
            self._add_holder()
        if self.num_nodes == 2:
            self._add_link(0, self.interface, 1, self.interface)
        else:
            hub = self._add_holder()
            self._run(hub, ["ip", "link", "add", "bridge0", "type", "bridge"])
            self._run(hub, ["ip", "link", "set", "bridge0", "up"])
            for node in range(self.num_nodes):
                port = f"port{node}"
                self._add_link(node, self.interface, hub, port)
                self._run(hub, ["ip", "link", "set", port, "master", "bridge0"])
        for node in range(self.num_nodes):
            self._run(node, ["ip", "address", "add", f"{self.address(node)}/24", "dev", self.interface])
            self._run(node, ["ip", "link", "set", "lo", "up"])

    def _add_holder(self) -> int:
        """Start a process that does nothing in a new network namespace; returns its index."""
        first = not self._holders
        enter = [] if first else self.command_prefix(0, network=False)
        unshare = ["unshare", "-Urn"] if first and self._rights == "user" else ["unshare", "-n"]
        holder = subprocess.Popen(
            [*enter, *unshare, "sh", "-c", "echo; read _"],
            stdin=self._hold_read,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us, not for the holders
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if not holder.stdout.readline():
            raise NetworkError(f"no network namespace: {holder.stderr.read().decode(errors='replace').strip()}")
        holder.stdout.close()
        holder.stderr.close()
        return len(self._holders) - 1

    def _add_link(self, holder_a: int, interface_a: str, holder_b: int, interface_b: str) -> None:
        pid_b = str(self._holders[holder_b].pid)
        self._run(
            holder_a,
            ["ip", "link", "add", interface_a, "type", "veth", "peer", "name", interface_b, "netns", pid_b],
        )
        for holder, interface in ((holder_a, interface_a), (holder_b, interface_b)):
            self._run(holder, ["ip", "link", "set", interface, "up"])
            self._shaped_ends.append((holder, interface))

    def _run(self, holder: int, command: Sequence[str]) -> None:
        words = [*self.command_prefix(holder), *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
        if done.returncode:
            raise NetworkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def open_network(num_nodes: int, rights: Sequence[Rights] = ("root", "user")) -> Network:
    """Make `num_nodes` simulated nodes, with shaped links if that is allowed here, else on loopback.

    What is allowed is found by trying `rights` in turn, shaping included. One node has no link: loopback.
    """
    if not 1 <= num_nodes <= MAX_NODES:
        raise ValueError(f"{num_nodes} nodes: expected 1 to {MAX_NODES}")
    if num_nodes == 1:
        return _on_loopback(num_nodes, "one node has no link")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return _on_loopback(num_nodes, f"not installed: {', '.join(missing)}")
    reasons = []
    for right in rights:
        try:
            network = NamespaceNetwork(num_nodes, right)
        except NetworkError as error:
            reasons.append(f"as {right}: {error}")
            continue
        try:
            network.shape("1gbit")
            network.shape(None)
            return network
        except NetworkError as error:
            network.close()
            reasons.append(f"as {right}: {error}")
    return _on_loopback(num_nodes, "; ".join(reasons))


def _on_loopback(num_nodes: int, reason: str) -> Network:
    return Network(num_nodes, f"loopback, unshaped ({reason})")
