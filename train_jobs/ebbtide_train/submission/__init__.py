"""How a job is submitted, archived, watched and submitted again.

Knows the arbiter's client; no Ray Train, no torch.
"""
