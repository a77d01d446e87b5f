"""Tensors evicted in place to host memory, copied and page-locked.

The only room here that may know torch, beside mapped regions.
"""
