"""Three hashes of a chunk, each for one question.

- *quick* (xxh3, 64 bits; 0.019 CPU s/GB from a core's cache and 0.046 from memory, docs/measured.md, "Storage"): are
  these the bytes that belong here? Asked at every read. Its seed is made of the object's salt, the file's name and the
  chunk's offset, so that right bytes in a wrong place fail as well, even under an index that was mixed up with them.
- *device* (a sum of products; a GPU computes it at the speed of its memory): the same question for bytes that never
  pass through host memory.
- *content* (SHA-256, or xxh3 with 128 bits): are these the same bytes as those? Names files and objects, without salt
  or place. SHA-256 costs more CPU than the fastest disk (0.56 CPU s/GB), so training state, which we write ourselves
  and nobody imports, takes xxh3-128.

The device hash is ``seed + length + sum(word[i] * key[i])`` modulo 2^64, over the chunk's 32-bit words (signed, little
endian, the last filled up with zeros) and fixed odd 64-bit keys: in torch ``(words * keys).sum()``, with int32 words
and int64 keys. What it detects:

- every error within one word, always: the key is odd, and the difference less than 2^32;
- any other error that knows nothing of the keys with a probability of 1 - 2^-33: multilinear hashing, the keys taken
  for random (Lemire and Kaser, Strongly universal string hashing is fast, 2014). Words of 32 bits in products of 64:
  with 64-bit words, two flipped sign bits would always cancel;
- nothing that was made on purpose: the keys are known, and neither it nor xxh3 is cryptographic. Only SHA-256 is.
"""

import hashlib
from enum import Enum
from functools import cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from ebbtide.storage.transport.transport import CHUNK_BYTES

SALT_BYTES = 16
CONTENT_BYTES = 32
WORD_BYTES = 4
_MASK = (1 << 64) - 1
_BLOCK_WORDS = 1 << 16  # products of 512 KiB stay in a core's cache


class ContentHash(Enum):
    """What tells whether two chunks have the same bytes."""

    SHA256 = "sha256"
    XXH3_128 = "xxh3-128"


def place_seed(salt: bytes, name: str, offset: int) -> int:
    """The seed of the quick and the device hash of the chunk at ``offset`` of a file."""
    file_seed = xxhash.xxh3_64_intdigest(salt + name.encode())
    return xxhash.xxh3_64_intdigest(
        offset.to_bytes(8, "little"),
        seed=file_seed,  # guard: a chunk's hash knows its object and its file
    )


def quick_hash(data: memoryview | bytes, seed: int) -> int:
    """64 bits of xxh3; gives up the interpreter's lock while it runs."""
    return xxhash.xxh3_64_intdigest(data, seed=seed)


def content_hash(data: memoryview | bytes, kind: ContentHash) -> bytes:
    """32 bytes; those of a shorter hash end in zeros."""
    if kind is ContentHash.SHA256:
        return hashlib.sha256(data).digest()
    return xxhash.xxh3_128_digest(data).ljust(CONTENT_BYTES, b"\0")


def small_digest(data: memoryview | bytes, kind: ContentHash) -> str:
    """The digest of a file of at most one chunk: the same that its index would give."""
    return hashlib.sha256(content_hash(data, kind) if len(data) else b"").hexdigest()


def device_hash(data: memoryview | bytes, seed: int) -> int:
    """The device hash, computed by the host (0.3 CPU s/GB)."""
    return finish_device_hash(_device_sum(data), len(data), seed)


def finish_device_hash(total: int, length: int, seed: int) -> int:
    """The device hash of ``length`` bytes whose products have the sum ``total``, signed or not."""
    return (seed + length + total) & _MASK


@cache
def word_keys() -> NDArray[np.int64]:
    """The keys for the words of one chunk of the largest size (32 MiB); a shorter chunk uses the first of them.

    The outputs of SplitMix64 from state 0, made odd.
    """
    state = np.arange(1, CHUNK_BYTES // WORD_BYTES + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys = ((state ^ (state >> np.uint64(31))) | np.uint64(1)).view(np.int64)
    keys.flags.writeable = False
    return keys


def _device_sum(data: memoryview | bytes) -> int:
    whole = len(data) - len(data) % WORD_BYTES
    words = np.frombuffer(data, dtype="<i4", count=whole // WORD_BYTES)
    keys = word_keys()
    total = 0
    for start in range(0, len(words), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS]
        total += int((block * keys[start : start + len(block)]).sum())
    if whole < len(data):
        last = int.from_bytes(bytes(data[whole:]).ljust(WORD_BYTES, b"\0"), "little", signed=True)
        total += last * int(keys[len(words)])
    return total
