"""`isthmus bench bias`: how much of what crosses between nodes arrives, with codec quant."""
