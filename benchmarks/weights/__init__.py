"""`isthmus bench weights`: bits and speed of weights that cross as differences, on steps of a real training run."""
