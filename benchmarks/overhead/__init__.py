"""`isthmus bench overhead`: the time that Isthmus adds to calls of bare Gloo, and to FSDP2 steps."""
