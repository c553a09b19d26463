"""A unit's chain on a GPU, counted on the fake one: launches, bytes, the host's time."""
