"""Shows machines and clusters: text, and SVG pictures."""
