"""The transport of plain files: O_DIRECT and the page cache, in threads that may hang.

Knows memory and bandwidth, no objects.
"""
