"""Describes the running machine by sysfs, hwloc and NVML; times its links, and keeps the results."""
