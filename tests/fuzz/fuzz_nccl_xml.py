"""NCCL's topology XML, from any text."""

from fuzzed_machine import fuzz, nccl_xml

fuzz(nccl_xml)
