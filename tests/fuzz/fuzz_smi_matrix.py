"""The matrix of `nvidia-smi topo -m`, from any text."""

from fuzzed_machine import fuzz, smi_matrix

fuzz(smi_matrix)
