"""Mappings that share what did not change, and look-ups that follow them from change to change.

Knows the state's types.
"""
