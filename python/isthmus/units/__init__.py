"""Units of a model: `isthmus.prepare`, and which unit and parameters a reduction belongs to."""
