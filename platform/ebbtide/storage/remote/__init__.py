"""Filesystems behind URLs, by fsspec: URLs, calls that are tried again, files written there.

Knows neither models nor checkpoints.
"""
