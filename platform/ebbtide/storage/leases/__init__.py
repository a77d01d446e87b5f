"""Leases on a shared directory, without file locks: their files, holders, watchers, and the leases of objects."""
