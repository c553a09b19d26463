"""`python -m isthmus.benchmarks.convergence`: the cost in validation loss of gradients in less than 32 bits."""
