"""The library that damages what a rank sends: its build, and its functions for the rank that it is loaded into."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "interposer.c"


def build(directory: Path) -> Path:
    """Compile the library; returns its path, to be put into LD_PRELOAD."""
    library = directory / "libinterposer.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(library)]
    subprocess.run([*command, "-ldl", "-pthread"], check=True)
    return library


class Interposer:
    """Arms the library in this process. `injected_at`: shared memory, where the time of the injection is written."""

    def __init__(self, injected_at: ctypes.c_double) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._injected_at = ctypes.byref(injected_at)

    def flip(self, nth_packet: int, byte: int, mask: int) -> None:
        """Flip the bits of `mask` in one byte of the packet."""
        self._library.interposer_flip(ctypes.c_long(nth_packet), ctypes.c_long(byte), mask, self._injected_at)

    def kill_at_packet(self, nth_packet: int) -> None:
        """End the process when the packet is encoded and would leave."""
        self._library.interposer_kill_at_packet(ctypes.c_long(nth_packet), self._injected_at)

    def kill_after_bytes(self, num_bytes: int) -> None:
        """End the process in the middle of what it sends."""
        self._library.interposer_kill_after_bytes(ctypes.c_long(num_bytes), self._injected_at)

    def kill_at_close(self, nth_socket: int) -> None:
        """End the process when it closes a connection."""
        self._library.interposer_kill_at_close(ctypes.c_long(nth_socket), self._injected_at)
