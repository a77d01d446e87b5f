"""A source looked through: which files make up the model, whether they fit together, and what identifies all that.

Everything is checked here, from listings, the index and the headers of the shards, before a byte of a tensor is read.

The *fingerprint* names a source in one state: place, files, sizes, stamps, headers. Whoever sees the same fingerprint
would import the same bytes, so they can share one import, and the work of an import that was killed can go on.
"""

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import prod
from pathlib import Path

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.models.sources.file_selection import choose, left_out
from ebbtide.storage.models.sources.relayout import Relayout, relayout
from ebbtide.storage.models.sources.shard_consistency import check_config, check_tensors, shards_of, weight_map
from ebbtide.storage.models.sources.source import Part, Source, SourceChanged, SourceFile, read_first
from ebbtide.storage.names import case_collision, file_name
from ebbtide.storage.safetensors.file_header import PREFIX_BYTES, SUFFIX, header_bytes, parse_header
from ebbtide.storage.safetensors.pickles import MAGIC_BYTES, refuse_pickle

LAYOUT = 1  # of our files; part of objects' keys and of fingerprints
MAX_HEADERS_BYTES = 64 << 20  # of all shards together; a model of 700 billion parameters has 15 MB
READERS = 8  # of headers at once: each takes two round trips


@dataclass(frozen=True)
class Shard:
    """A file of weights."""

    file: SourceFile
    layout: Relayout = field(repr=False)
    header_digest: str


@dataclass(frozen=True)
class Checkpoint:
    """A model at its source.

    Attributes:
        shards: in the order of their names.
        small: everything else that is taken.
        notes: what the user should know, in sentences.
        fingerprint: 64 hexadecimal digits.
        is_vague: some files have no stamp, so that a fingerprint may stand for several contents.
    """

    source: Source
    shards: tuple[Shard, ...]
    small: tuple[SourceFile, ...]
    notes: tuple[str, ...]
    fingerprint: str
    is_vague: bool

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All that is taken."""
        return (*(shard.file for shard in self.shards), *self.small)

    @property
    def size_bytes(self) -> int:
        """In the store, without indexes."""
        return sum(shard.layout.plan.file_bytes for shard in self.shards) + sum(one.size_bytes for one in self.small)

    @property
    def num_tensors(self) -> int:
        """Of all shards."""
        return sum(len(shard.layout.plan.entries) for shard in self.shards)

    @cached_property
    def key(self) -> dict[str, str]:
        """What the object says of itself; follows from the content alone."""
        bytes_of: Counter[str] = Counter()
        parameters = 0
        for shard in self.shards:
            for entry in shard.layout.plan.entries:
                bytes_of[entry.dtype] += entry.length
                parameters += prod(entry.shape)
        least = sum(bytes_of.values()) / 100  # scales and counters of a percent do not make a type
        types = [name for name, count in sorted(bytes_of.items(), key=lambda one: (-one[1], one[0])) if count >= least]
        return {
            "layout": str(LAYOUT),
            "dtype": "+".join(types),
            "tensors": str(self.num_tensors),
            "parameters": str(parameters),
        }

    def check_unchanged(self) -> None:
        """Look at the source again.

        Raises:
            SourceChanged: a file that is taken is another, or gone.
            TransferFailed: it cannot be told.
        """
        now = {file.name: file for file in self.source.listing()}
        hidden = [file.name for file in self.files if file.name not in now]
        now |= {file.name: file for file in self.source.look_for(hidden)} if hidden else {}
        for file in self.files:
            if now.get(file.name) != file:
                raise SourceChanged(f"{self.source.where}/{file.name}", "is not the file that it was")


def examine(source: Source) -> Checkpoint:
    """Look through a source.

    Raises:
        Refused: it holds no model that can be imported; says which file, and why.
        TransferFailed: it cannot be read.
    """
    files = source.listing()
    choice = choose(files, source.where)
    by_name = {file.name: file for file in files}
    named: dict[str, str] = {}
    if choice.index is None:
        assert choice.single is not None
        weights = [choice.single]
    else:
        named = weight_map(source, choice.index)
        weights = shards_of(source, by_name, choice.index.name, named)
    _check_names(source, [*weights, *choice.small])
    shards = _read_shards(source, weights)
    others = [file for file in files if file.name.endswith(SUFFIX)]
    notes = [*choice.notes, *left_out(others, [file.name for file in weights])]
    headers = {shard.file.name: shard.layout.source for shard in shards}
    notes += check_tensors(source, headers, named, choice.index.name if choice.index else "")
    taken = [*weights, *choice.small]
    notes += check_config(source, choice.small)
    is_vague = any(not file.stamp for file in taken)
    if is_vague:
        notes.append(
            "the source tells neither times nor versions of its files: a change during the import may go unnoticed, "
            "and nothing can be resumed or shared with an earlier import"
        )
    fingerprint = _fingerprint(source, shards, choice.small)
    return Checkpoint(source, tuple(shards), choice.small, tuple(notes), fingerprint, is_vague)


def _check_names(source: Source, files: Sequence[SourceFile]) -> None:
    for file in files:
        try:
            file_name(file.name)
        except Refused as error:
            raise Refused(f"{source.where}: {error}") from error
    if clash := case_collision(file.name for file in files):
        raise Refused(f"{source.where}: the names {clash[0]!r} and {clash[1]!r} differ only in case: rename one")


def _read_shards(source: Source, weights: Sequence[SourceFile]) -> list[Shard]:
    with ThreadPoolExecutor(READERS) as pool:
        begun = list(pool.map(lambda file: _first_bytes(source, file), weights))
        if (total := sum(length for _, length in begun)) > MAX_HEADERS_BYTES:
            raise Refused(f"{source.where}: the headers of its shards have {total} bytes, more than any model's")
        return list(pool.map(lambda file, one: _read_shard(source, file, *one), weights, begun))


def _first_bytes(source: Source, file: SourceFile) -> tuple[bytes, int]:
    """What a shard begins with, and how long its header is."""
    first = read_first(source, file, MAGIC_BYTES)
    try:
        refuse_pickle(Path(file.name), first)
        return first, header_bytes(first[:PREFIX_BYTES], file.size_bytes, Path(file.name))
    except (Corrupt, Refused) as error:
        raise Refused(f"{source.where}: {error}") from error


def _read_shard(source: Source, file: SourceFile, first: bytes, length: int) -> Shard:
    raw = bytearray(first[:length].ljust(length))
    with source.open(file) as reading, memoryview(raw)[len(first) :] as memory:
        reading.read([Part(len(first), memory)])
    try:
        header = parse_header(bytes(raw), file.size_bytes, Path(file.name))
        return Shard(file, relayout(header), sha256(raw).hexdigest())
    except (Corrupt, Refused) as error:
        raise Refused(f"{source.where}: {error}") from error


def _fingerprint(source: Source, shards: Sequence[Shard], small: Sequence[SourceFile]) -> str:
    files = [[shard.file.name, shard.file.size_bytes, shard.file.stamp, shard.header_digest] for shard in shards]
    files += [[one.name, one.size_bytes, one.stamp, ""] for one in small]
    return sha256(json.dumps([LAYOUT, source.where, files]).encode()).hexdigest()
