"""What a region says of itself, as bytes. Pure.

Two slots take turns. Each has a number that grows and a hash of itself; the valid one with the higher number counts. A
writer that is killed in the midst of one leaves the other: what stood there before.
"""

import json
import struct
from dataclasses import dataclass

import xxhash

from ebbtide.snapshot.errors import RegionDamaged
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState

HEADER_BYTES = 4096  # a page, so that the payload behind it is aligned for direct I/O
SLOT_BYTES = HEADER_BYTES // 2
MAGIC = b"ebbregn1"
_FIXED = struct.Struct("<8sQIQQQIH")  # magic, number, state, payload, note's bytes, note's hash, hashed, key's bytes
_HASH = struct.Struct("<Q")
KEY_BYTES_MAX = SLOT_BYTES - _FIXED.size - _HASH.size


@dataclass(frozen=True, slots=True)
class Header:
    """``number``: of this writing. ``note_hash``: xxh3-64. ``hashed``: whether hashes of the payload are recorded."""

    number: int
    key: RegionKey
    state: RegionState
    payload_bytes: int
    note_bytes: int = 0
    note_hash: int = 0
    hashed: bool = False


def encode(header: Header) -> bytes:
    """One slot, `SLOT_BYTES` long. Raises ValueError if the job's name is too long for it."""
    key = json.dumps([header.key.job, header.key.lease_epoch, header.key.rank]).encode()
    if len(key) > KEY_BYTES_MAX:  # guard: a job's name that fits no header is refused
        raise ValueError(f"the job's name takes {len(key)} bytes here, at most {KEY_BYTES_MAX} fit")
    fixed = _FIXED.pack(
        MAGIC,
        header.number,
        header.state,
        header.payload_bytes,
        header.note_bytes,
        header.note_hash,
        header.hashed,
        len(key),
    )
    body = (fixed + key).ljust(SLOT_BYTES - _HASH.size, b"\0")
    return body + _HASH.pack(xxhash.xxh3_64_intdigest(body))


def slot_offset(number: int) -> int:
    """Where the slot of that number lies in the file."""
    return number % 2 * SLOT_BYTES


def newest(raw: bytes, where: str) -> Header:
    """The header that counts, of the file's first `HEADER_BYTES` bytes.

    Raises:
        RegionDamaged: neither slot is valid; ``where`` is in its words.
    """
    found = [header for at in (0, SLOT_BYTES) if (header := _decode(raw[at : at + SLOT_BYTES])) is not None]
    if not found:  # guard: without a header a region is damaged
        raise RegionDamaged(f"{where}: no valid header; it was made by something else, or cut off")
    return max(
        found,
        key=lambda header: header.number,  # guard: of two headers the later counts
    )


def _decode(slot: bytes) -> Header | None:
    body, stored = slot[: -_HASH.size], slot[-_HASH.size :]
    if (
        len(slot) != SLOT_BYTES  # guard: half a header is none
        or _HASH.unpack(stored)[0] != xxhash.xxh3_64_intdigest(body)  # guard: a header with another hash is none
    ):
        return None
    magic, number, state, payload, note_bytes, note_hash, hashed, key_bytes = _FIXED.unpack_from(body)
    if magic != MAGIC:  # guard: a header with another magic is none
        return None
    try:
        job, epoch, rank = json.loads(body[_FIXED.size : _FIXED.size + key_bytes])
        key = RegionKey(str(job), int(epoch), int(rank))
        return Header(number, key, RegionState(state), payload, note_bytes, note_hash, bool(hashed))
    except (ValueError, TypeError):  # guard: a header whose key makes no sense is none
        return None
