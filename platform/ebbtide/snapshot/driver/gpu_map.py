"""A full map of GPUs from the part of it that somebody cares about; pure.

The driver wants a pair for every GPU that the kernel shows, also for those that a process does not use, and each GPU
at most once as the target (NVIDIA/cuda-python issue 1983).
"""

from collections.abc import Mapping


def completed(wanted: Mapping[str, str], gpus: frozenset[str]) -> dict[str, str]:
    """A permutation of ``gpus`` that agrees with ``wanted``.

    A GPU that ``wanted`` does not name stays; if its place is taken, it goes to the GPU that the other one left, at
    the end of the chain: ``{a: b}`` becomes ``{a: b, b: a}``.

    Args:
        wanted: from old to new.
        gpus: all GPUs of the machine.

    Raises:
        ValueError: a GPU that is not there, or two that shall go to one.
    """
    strange = sorted((set(wanted) | set(wanted.values())) - gpus)
    if strange:
        raise ValueError(f"this machine has no GPU {', '.join(strange)}; it has {', '.join(sorted(gpus)) or 'none'}")
    if len(set(wanted.values())) < len(wanted):
        raise ValueError(f"two GPUs shall go to one: {dict(wanted)}")
    comes_from = {new: old for old, new in wanted.items()}
    whole = dict(wanted)
    for gpu in gpus - set(wanted):
        place = gpu
        while place in comes_from:
            place = comes_from[place]
        whole[gpu] = place
    return whole
