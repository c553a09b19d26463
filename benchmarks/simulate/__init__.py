"""Simulated nodes on one machine: network namespaces joined by shaped links, and the ranks that run in them."""

from isthmus.benchmarks.simulate.links import parse_link_rate
from isthmus.benchmarks.simulate.network import (
    MAX_NODES,
    SIMULATED_RANGES,
    NamespaceNetwork,
    Network,
    NetworkError,
    open_network,
)
from isthmus.benchmarks.simulate.ranks import SILENCE_MARGIN_S, RankFailure, RankWorld

__all__ = [
    "MAX_NODES",
    "SILENCE_MARGIN_S",
    "SIMULATED_RANGES",
    "NamespaceNetwork",
    "Network",
    "NetworkError",
    "RankFailure",
    "RankWorld",
    "open_network",
    "parse_link_rate",
]
