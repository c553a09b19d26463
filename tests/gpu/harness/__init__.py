"""Builds, runs programs with a time limit each, and reports what they say of themselves."""
