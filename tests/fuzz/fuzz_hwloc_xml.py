"""hwloc's XML, from any text."""

from fuzzed_machine import fuzz, hwloc_xml

fuzz(hwloc_xml)
