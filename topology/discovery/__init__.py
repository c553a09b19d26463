"""Describes the running machine by sysfs and NVML; times its links, and keeps the results."""
