"""Two simulated hosts behind a slow link."""

from collections.abc import Iterator

import pytest

from isthmus.benchmarks.simulate.network import NamespaceNetwork, NetworkError


def two_hosts(rate: str) -> Iterator[NamespaceNetwork]:
    """Yield them, for a fixture; skips where no namespaces can be made."""
    for rights in ("root", "user"):
        try:
            with NamespaceNetwork(2, rights) as network:
                network.shape(rate)
                yield network
                return
        except NetworkError as error:
            reason = str(error)
    pytest.skip(f"no namespaces here: {reason}")
