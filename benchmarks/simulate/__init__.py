"""Simulated nodes on one machine: network namespaces joined by shaped links, and the ranks that run in them."""
