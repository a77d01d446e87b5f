"""The same training without the pool, and the comparison of step logs with it: control runs and a plain PyTorch loop.

Knows the session only.
"""
