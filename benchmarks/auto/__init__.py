"""`isthmus bench auto`: codec auto against every fixed codec."""
