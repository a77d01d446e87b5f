"""How records lie in an epoch's file: header and JSON payload, one after the other, nothing in between.

::

    magic "EBBT" | payload length u32 | epoch u32 | sequence number u64 | hash, 16 bytes | payload (JSON object)

The hash is SHA-256, cut to 128 bits, over the header before it and the payload. Epoch and sequence number are in it,
so that no block of another file, and no older block of the same one, can pass for the record that belongs there.
Whatever does not parse ends the valid part of its file: after a crash a tail may be torn, never a middle.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from ebbtide.ledger.errors import RecordRefused

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None

MAX_PAYLOAD_BYTES = 16 << 20  # far above any decision of a pool of thousands; bounds what a damaged length can cost

_HEADER = struct.Struct("<4sIIQ")
_MAGIC = b"EBBT"
_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One record as read back; ``offset`` and ``end`` are where it begins and ends in its file, in bytes."""

    epoch: int
    seq: int
    offset: int
    end: int
    payload: dict[str, JSON]

    @property
    def id(self) -> str:
        """The record's name in this ledger."""
        return f"{self.epoch}-{self.seq}"


def encode_payload(payload: Mapping[str, JSON]) -> bytes:
    """The payload's bytes.

    Raises:
        RecordRefused: it is no JSON object (NaN and infinity are no JSON) or too large.
    """
    try:
        text = json.dumps(dict(payload), allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:  # guard: a record is JSON
        raise RecordRefused(f"a record must be a JSON object: {error}") from error
    if len(text) > MAX_PAYLOAD_BYTES:  # guard: no record is above the limit
        raise RecordRefused(f"a record of {len(text)} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
    return text


def frame(epoch: int, seq: int, payload: bytes) -> bytes:
    """The bytes of one record."""
    header = _HEADER.pack(_MAGIC, len(payload), epoch, seq)
    return header + _hash(header, payload) + payload


def scan(file: BinaryIO, *, epoch: int, offset: int, seq: int, limit: int | None) -> Iterator[LedgerRecord]:
    """The valid records from ``offset`` on, the first of which must have number ``seq``.

    Ends without an error at the first thing that is no valid record, and before the first record that reaches beyond
    ``limit``.
    """
    file.seek(offset)
    while True:
        found = _read_one(file, epoch=epoch, offset=offset, seq=seq)
        if (
            found is None
            # guard: an older epoch counts up to its limit
            or (limit is not None and found.end > limit)
        ):
            return
        yield found
        offset, seq = found.end, seq + 1


def _read_one(file: BinaryIO, *, epoch: int, offset: int, seq: int) -> LedgerRecord | None:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, length, found_epoch, found_seq = _HEADER.unpack(header)
    if (
        (magic, found_epoch, found_seq) != (_MAGIC, epoch, seq)  # guard: a record counts by its epoch and number
        or length > MAX_PAYLOAD_BYTES
    ):
        return None
    rest = file.read(_HASH_BYTES + length)
    payload = rest[_HASH_BYTES:]
    if (
        len(payload) < length
        # guard: a record counts by its hash
        or rest[:_HASH_BYTES] != _hash(header, payload)
    ):
        return None
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    return LedgerRecord(epoch, seq, offset, offset + len(header) + len(rest), content)


def _hash(header: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(header + payload).digest()[:_HASH_BYTES]
