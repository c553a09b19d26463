"""Residuals: saving, loading and re-sharding them."""
