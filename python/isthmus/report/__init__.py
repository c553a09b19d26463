"""Statistics of a group, explanations, and facts for bug reports: `isthmus.stats`, `.explain`, `isthmus info`."""
