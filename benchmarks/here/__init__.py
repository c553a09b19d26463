"""Benchmarks on the ranks that a launcher started, over the links that are there."""
