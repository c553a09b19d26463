"""What is left of a training under torchft whose members are killed: over Isthmus, and over torchft's own Gloo group."""
