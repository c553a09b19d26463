"""Private names of torch, which nothing else reads. "Instead" is the public hook that would take a section's place."""
