"""One model for each section of the file, and the kinds of values that they share.

Knows the pool's specs, not the other sections.
"""
