"""Benchmarks over simulated nodes: training, and single collectives."""
