"""Predicts a training step: which collectives it makes, the bytes that they put on links, their time, and memory.

`volumes` holds the formulas of bytes, which the benchmarks check their counters against, too.
"""
