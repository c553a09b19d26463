"""`isthmus bench convergence`: what reducing gradients in less than 32 bits costs in validation loss."""
