"""Two simulated hosts behind a slow link, and programs on them."""

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from isthmus.benchmarks.simulate.network import Network, open_network
from support import ranks


def two_hosts(rate: str) -> Iterator[Network]:
    """Yield them, for a fixture; skips where no namespaces can be made."""
    with open_network(2) as network:
        if not network.has_links:
            pytest.skip(f"no namespaces here: {network.description}")
        network.shape(rate)
        yield network


def enter(prefix: Sequence[str]) -> None:
    """Have this process enter the namespaces of a node: `prefix` is what its network puts before commands."""
    for flag, kind in (("-U", "user"), ("-n", "net")):
        if flag in prefix:
            with open(f"/proc/{prefix[prefix.index('-t') + 1]}/ns/{kind}") as namespace:
                result = ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0)
                assert result == 0, os.strerror(ctypes.get_errno())


def as_torchrun(
    network: Network, sizes: Sequence[int], *words: Any, missing: Sequence[int] = (), **variables: Any
) -> list[tuple[Any, str, str]]:
    """Run `isthmus` as ranks of torchrun, sizes[host] on each host; return exit code, stdout and stderr of each.

    missing: ranks that never start.
    """
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    meeting = {"MASTER_ADDR": network.address(0), "MASTER_PORT": network.free_port(), "WORLD_SIZE": len(hosts)}
    common = {"GLOO_SOCKET_IFNAME": network.interface, "COLUMNS": 400} | meeting | variables
    starts = [
        (network.command_prefix(host), {"RANK": rank, "GROUP_RANK": host, "LOCAL_WORLD_SIZE": sizes[host]} | common)
        for rank, host in enumerate(hosts)
        if rank not in missing
    ]
    with tempfile.TemporaryDirectory() as folder:
        codes = ranks.run(_run_isthmus, len(starts), starts, words, folder)
        return [(code, *(Path(folder, f"{i}.{fd}").read_text() for fd in (1, 2))) for i, code in enumerate(codes)]


def _run_isthmus(index: int, _: int, starts: Sequence[Any], words: Sequence[Any], folder: str) -> Any:
    from isthmus.cli.main import main

    prefix, variables = starts[index]
    enter(prefix)
    os.environ.update({name: str(value) for name, value in variables.items()})
    sys.argv[1:] = map(str, words)
    for descriptor in (1, 2):
        os.dup2(os.open(f"{folder}/{index}.{descriptor}", os.O_WRONLY | os.O_CREAT), descriptor)
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    return ended.value.code or 0
