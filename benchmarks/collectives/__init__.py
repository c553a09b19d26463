"""`isthmus bench collectives`: single collectives, timed and verified."""
