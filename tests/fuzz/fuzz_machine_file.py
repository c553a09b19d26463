"""Files of recorded machines, in any format, from any text."""

from fuzzed_machine import fuzz, machine_file

fuzz(machine_file)
