"""`isthmus bench weights`: what a step of training costs to send outside of any group."""
