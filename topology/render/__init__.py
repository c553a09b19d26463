"""Shows machines and clusters: text and JSON."""
