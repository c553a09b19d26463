"""Benchmarks over simulated nodes, one folder a family; `common` and `simulate` hold what they share.

Only `isthmus.cli` imports them.
"""
