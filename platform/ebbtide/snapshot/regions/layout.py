"""Where things lie in a region's file: header, payload, hashes of its chunks, and the note, which may grow. Pure."""

import mmap

from ebbtide.snapshot.regions.header import HEADER_BYTES

CHUNK_BYTES = 16 << 20  # of one hash; as weights and checkpoints on the shared directory have (docs/origins.md)
HASH_BYTES = 8


def round_up(size_bytes: int) -> int:
    """A payload's size in whole pages, at least one."""
    return max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def chunks(payload_bytes: int) -> int:
    """How many hashes a payload has."""
    return -(-payload_bytes // CHUNK_BYTES)


def hashes_offset(payload_bytes: int) -> int:
    """Where the hashes begin."""
    return HEADER_BYTES + payload_bytes


def note_offset(payload_bytes: int) -> int:
    """Where the note begins."""
    return hashes_offset(payload_bytes) + chunks(payload_bytes) * HASH_BYTES


def least_bytes(payload_bytes: int) -> int:
    """How long a file with such a payload is at least."""
    return note_offset(payload_bytes)
