"""`isthmus bench convergence`: the cost in validation loss of reducing gradients in less than 32 bits."""
