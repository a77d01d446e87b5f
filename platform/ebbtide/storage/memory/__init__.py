"""Host memory that transfers move into: mapped arenas, and pools that lend them.

Knows the C library and the interface of transports.
"""
