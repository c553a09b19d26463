"""Residuals: saving and loading them."""
