"""A mapped file seen as a tensor."""

import mmap
import warnings

import torch


def as_tensor(mapped: mmap.mmap) -> torch.Tensor:
    """All of it as uint8. The tensor keeps the mapping; closing that by hand would pull it away from under it."""
    with warnings.catch_warnings():  # "buffer is not writable" cannot apply: the map is writable
        warnings.simplefilter("ignore")
        return torch.frombuffer(mapped, dtype=torch.uint8)
