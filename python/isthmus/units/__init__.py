"""Units of a model: `isthmus.prepare`, whose gradient a reduction is, and which parameters are in it."""
