"""Files and directories by the calls of POSIX and Linux.

Durable writes of small files, descriptors, calls that Python does not offer. Knows only errors.
"""
