"""The machine, read: files below a root, mounts, a directory tried out, NVML, each with a deadline.

It judges nothing.
"""
