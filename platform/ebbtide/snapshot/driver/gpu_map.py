"""A full map of GPUs from the part of it that somebody cares about; pure.

The driver wants a pair for every GPU that the kernel shows, also for those that a process does not use, and each GPU
at most once as the target (NVIDIA/cuda-python issue 1983). It takes a GPU only in the place of one of the same chip.

What comes from another machine needs pairs for all GPUs of that one. That the driver takes such a map was not tried.
"""

from collections.abc import Mapping


def complete_map(wanted: Mapping[str, str], gpus: frozenset[str]) -> dict[str, str]:
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


def whole_map(wanted: Mapping[str, str], there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """The map for a process that was checkpointed on another machine, or on this one.

    Args:
        wanted: from old to new, for the GPUs that the process may have used.
        there: what each GPU was where it was checkpointed, by uuid; empty: on this machine.
        here: what each GPU of this machine is; empty: nobody knows.

    Returns:
        ``wanted`` itself if all of those GPUs are here, or nobody knows; else a pair for every GPU of ``there``.

    Raises:
        ValueError: a GPU that is not here, two that shall go to one, one of another chip, too few GPUs here; or
            nothing is wanted, and what was there is not here: it must not get just any GPU.
    """
    if not here:
        return dict(wanted)
    if strange := sorted(set(wanted.values()) - set(here)):
        raise ValueError(f"this machine has no GPU {', '.join(strange)}; it has {', '.join(sorted(here))}")
    if len(set(wanted.values())) < len(wanted):
        raise ValueError(f"two GPUs shall go to one: {dict(wanted)}")
    for old, new in wanted.items():
        if (was := (there or here).get(old, here[new])) != here[new]:
            raise ValueError(f"{old} is one {was}, and {new} one {here[new]}: the driver needs the same chip")
    if set(there) <= set(here):
        return dict(wanted)
    if not wanted or (strange := sorted(set(wanted) - set(there))):
        raise ValueError(f"it was on GPUs of another machine ({', '.join(sorted(there))}): say which one becomes which")
    return {**wanted, **_places(set(there) - set(wanted), set(here) - set(wanted.values()), {**there, **here})}


def _places(olds: set[str], free: set[str], chips: Mapping[str, str]) -> dict[str, str]:
    """Its own place for each GPU that nobody cares about, or else one of the same chip."""
    found = {old: old for old in olds & free}
    left = sorted(free - set(found))
    for old in sorted(olds - set(found)):
        place = next((new for new in left if chips[new] == chips[old]), None)
        if place is None:
            raise ValueError(f"this machine has too few GPUs of the chip {chips[old]} for those of the other one")
        left.remove(place)
        found[old] = place
    return found


def moved_in(whole: Mapping[str, str], here: frozenset[str]) -> dict[str, str]:
    """A map that names GPUs of another machine: it must be whole already.

    Raises:
        ValueError: it leads to a GPU that is not here, or two to one.
    """
    strange = sorted(set(whole.values()) - here)
    if strange or len(set(whole.values())) < len(whole):
        what = (
            f"this machine has no GPU {', '.join(strange)}" if strange else f"two GPUs shall go to one: {dict(whole)}"
        )
        raise ValueError(f"{what}; it has {', '.join(sorted(here)) or 'none'}")
    return dict(whole)
