"""`isthmus bench overhead`: what Isthmus adds to calls of bare Gloo, and to FSDP2 steps."""
