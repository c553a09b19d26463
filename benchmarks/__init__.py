"""Benchmarks over simulated nodes, one folder a family; what they share is in `common` and `simulate`.

Nothing but `isthmus.cli` imports them.
"""
