"""The work behind the verbs: images of process trees, GPU checkpoints of trees, and their end after a crash.

Knows no socket.
"""
