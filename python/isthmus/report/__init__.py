"""What a group did and why, and what is installed: `isthmus.stats`, `isthmus.explain`, `isthmus info`."""
