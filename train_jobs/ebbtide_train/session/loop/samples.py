"""Which samples a step takes: a pure function of the step, so that no number of workers and no restart changes it.

Position ``p`` of the endless sample stream is step * global_batch + place; epoch ``p // n`` is a pseudo-random
permutation of ``0..n-1`` by a Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
domains", 2002). Why not ``randperm``: this needs no memory, no state, and does not change with torch's version.

Not guaranteed: cryptographic quality. The mixing is splitmix64's finalizer, good enough to shuffle.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_ROUNDS = 6  # four make a Feistel network pseudo-random, two more are cheap
_MANY = 32  # samples, from which on a loop costs more than whole arrays do (0.2 ms here)

Words = npt.NDArray[np.uint64]
SharedT = TypeVar("SharedT", list[int], range)


def _mix(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permute(index: int, *, length: int, key: int) -> int:
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


def permute_all(indexes: Iterable[int], *, length: int, key: int) -> list[int]:
    """`permute` of each of them."""
    asked = list(indexes)
    if len(asked) < _MANY:
        return [permute(index, length=length, key=key) for index in asked]
    values = _network(np.array(asked, dtype=np.uint64), length, key)
    while (out := values >= length).any():
        values[out] = _network(values[out], length, key)
    found: list[int] = values.tolist()
    return found


def _network(values: Words, length: int, key: int) -> Words:
    """One way through the network, as in `permute`."""
    half_bits = np.uint64(max(1, ((length - 1).bit_length() + 1) // 2))
    half_mask = np.uint64((1 << int(half_bits)) - 1)
    left, right = values >> half_bits, values & half_mask
    for turn in range(_ROUNDS):
        mixed = _mix_all(np.uint64(key) ^ _mix_all((right << np.uint64(8)) | np.uint64(turn)))
        left, right = right, left ^ (mixed & half_mask)
    found: Words = (left << half_bits) | right
    return found


def _mix_all(values: Words) -> Words:
    """`_mix`, modulo 2 ** 64 by itself."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Words = values ^ (values >> np.uint64(31))
    return found


def sample_ids(step: int, *, seed: int, length: int, global_batch: int, rank: int = 0, world: int = 1) -> list[int]:
    """The samples of one step (from 0) that a rank takes, in order; of all ranks, if none is named.

    Each epoch holds every sample once; a step may span epochs.
    """
    if length < 1:
        raise ValueError("the dataset is empty")
    first = step * global_batch
    mine = share(range(first, first + global_batch), rank=rank, world=world)
    found: list[int] = []
    for epoch, indexes in _by_epoch(mine, length):
        found += permute_all(indexes, length=length, key=_mix(_mix(seed & _MASK) ^ epoch))
    return found


def _by_epoch(positions: range, length: int) -> Iterator[tuple[int, range]]:
    """Each epoch of these positions, with their indexes in it."""
    begin = positions.start
    while begin < positions.stop:
        epoch, index = divmod(begin, length)
        end = min(positions.stop, (epoch + 1) * length)
        yield epoch, range(index, index + end - begin)
        begin = end


def share(ids: SharedT, *, rank: int, world: int) -> SharedT:
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
