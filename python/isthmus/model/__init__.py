"""Models: whose gradient or shard a call moves, `isthmus.prepare` and `attach`, residuals and their checkpoints."""
