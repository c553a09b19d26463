"""`isthmus bench scaling`: the training benchmark at several numbers of nodes."""
