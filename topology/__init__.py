"""Descriptions of machines and clusters: node maps, machines, links.

Nothing is imported here: `import torch` registers the backend, which needs `node_map` alone, and must not load the
libraries that read machines. Import the modules by name.
"""
