"""`isthmus bench soak`: thousands of mixed collectives, every result verified, memory flat."""
