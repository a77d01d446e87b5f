"""Which samples a step takes: a pure function of the step, so that no number of workers and no restart changes it.

Position ``p`` of the endless sample stream is step * global_batch + place; epoch ``p // n`` is a pseudo-random
permutation of ``0..n-1`` by a Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
domains", 2002). Why not ``randperm``: this needs no memory, no state, and does not change with torch's version.

Not guaranteed: cryptographic quality. The mixing is splitmix64's finalizer, good enough to shuffle.
"""

_MASK = (1 << 64) - 1
_ROUNDS = 6  # four make a Feistel network pseudo-random, two more are cheap


def _mix(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permuted(index: int, *, length: int, key: int) -> int:
    """Where ``index`` goes under the permutation of ``range(length)`` chosen by ``key``."""
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    half_mask = (1 << half_bits) - 1
    value = index
    while True:
        left, right = value >> half_bits, value & half_mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (_mix(key ^ _mix((right << 8) | turn)) & half_mask)
        value = (left << half_bits) | right
        if value < length:  # otherwise walk on: the network is a permutation, so the walk comes back into range
            return value


def sample_ids(step: int, *, seed: int, length: int, global_batch: int) -> list[int]:
    """The samples of one step (from 0), in order. Each epoch holds every sample once; a step may span two epochs."""
    if length < 1:
        raise ValueError("the dataset is empty")
    first = step * global_batch
    return [
        permuted(position % length, length=length, key=_mix(_mix(seed & _MASK) ^ (position // length)))
        for position in range(first, first + global_batch)
    ]


def share(ids: list[int], *, rank: int, world: int) -> list[int]:
    """The contiguous part of ``ids`` that belongs to ``rank``; sizes differ by at most one."""
    small, larger_ones = divmod(len(ids), world)
    start = rank * small + min(rank, larger_ones)
    return ids[start : start + small + (rank < larger_ones)]


def micro_batches(ids: list[int], *, at_most: int, count: int | None = None) -> list[list[int]]:
    """A rank's share in as few equal parts as fit ``at_most``; sizes differ by at most one.

    With ``count`` in as many as so many samples would need; then some may be empty.
    """
    parts = -(-(len(ids) if count is None else count) // at_most)
    return [share(ids, rank=part, world=parts) for part in range(parts)]
