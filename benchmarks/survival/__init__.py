"""Training under torchft while members are killed: over Isthmus, and over the Gloo group of torchft."""
