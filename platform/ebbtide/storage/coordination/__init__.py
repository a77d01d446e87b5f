"""Processes of all nodes that agree by leases: one makes a thing while others wait, and only so many load at once."""
