"""The operating system as all roots see it: processes, their memory, runtime directories, which way was taken.

Knows no pool, no torch, no Ray.
"""
