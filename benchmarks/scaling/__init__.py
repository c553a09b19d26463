"""`python -m isthmus.benchmarks.scaling`: the training benchmark at several numbers of nodes."""
