"""Which ranks sit on which node: what launchers say, and what is made of it."""
