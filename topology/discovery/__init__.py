"""Finds out about the machine that is running: sysfs, hwloc, NVML; times its links, and keeps the results."""
