"""The directory of a run: which epochs and checkpoints a run has, which count, which stay, and room for the next.

No torch, nothing of what is in one.
"""
