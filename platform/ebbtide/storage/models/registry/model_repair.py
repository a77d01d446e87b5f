"""Repairing a model from where it came from, or from any other copy of it.

A source has its own layout, and `repair` wants copies of our files. So the bad chunks, and no others, are fetched from
the source into a file with holes in a work directory, laid out as in the store; `repair` compares each with the hash
under which it was published and puts it in place.

Manifest and COMMIT cannot be repaired. There the model is imported anew, which gives the same object if the source is
still the same model; if it is not, nothing is changed.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ebbtide.storage.errors import Corrupt, Refused, StorageError
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.leases.lease_subjects import of_work
from ebbtide.storage.maintenance.repair import repair
from ebbtide.storage.maintenance.scrub import Damage, damage_of
from ebbtide.storage.maintenance.space_reservation import reserve
from ebbtide.storage.models.importer.import_records import ImportRecords
from ebbtide.storage.models.importer.import_terms import ImportTerms
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.sources.source import Source, read_all
from ebbtide.storage.models.sources.source_checkpoint import Checkpoint, examine
from ebbtide.storage.models.sources.source_factory import open_source
from ebbtide.storage.models.sources.source_patience import within_patience
from ebbtide.storage.names import ObjectId, attempt
from ebbtide.storage.objects.manifest import FileEntry, Manifest
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.safetensors.file_header import SUFFIX
from ebbtide.storage.transport.chunk_ranges import cut_at_chunks
from ebbtide.storage.transport.transport import Range

Told = Callable[[str], None]  # called with what is being done, in words


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What was repaired.

    Attributes:
        damage: what was found.
        files: that were replaced.
        source_bytes: fetched for it.
        source: where from; empty if nothing was needed.
        anew: the whole model was imported again.
    """

    damage: tuple[str, ...]
    files: tuple[str, ...] = ()
    source_bytes: int = 0
    source: str = ""
    anew: bool = False


def repair_model(
    store: ObjectStore,
    target: ObjectId,
    source: Source | None = None,
    *,
    terms: ImportTerms | None = None,
    told: Told | None = None,
) -> RepairResult:
    """Look for damage and repair it.

    Args:
        store: where.
        target: the model.
        source: where good bytes are; None: where it was imported from, if that is on record.
        terms: of an import, should one be needed.
        told: see there.

    Raises:
        Refused: there is no source, or it is another model; the model is as it was.
        NotPublished: there is no such model.
        NoRoom, TransferFailed: files that were repaired before stay repaired.
    """
    tell = told or _nobody
    tell("looking for damage")
    try:
        manifest = store.manifest(target)
        damage = damage_of(store.ports, target)
    except Corrupt as error:
        return _anew(store, target, source, terms, str(error), tell)
    if not damage:
        return RepairResult(())
    needed = sorted({one.file for one in damage if one.part is not None})
    with ExitStack() as held:
        copies: dict[str, Path] = {}
        checkpoint: Checkpoint | None = None
        if needed:
            checkpoint = _examined(store, target, source)
            tell(f"fetching what is damaged from {checkpoint.source.where}")
            name = attempt(f"mend-{target[:16]}-{secrets.token_hex(8)}")
            work = store.paths.work(name)
            held.enter_context(store.ports.leases.hold(of_work(name)))
            held.callback(_remove, store, work)
            store.ports.disk.make_directory(work)
            wanted = {file: _in_chunks(manifest, manifest.file(file), damage) for file in needed}
            reserve(store.ports, name, sum(part.length for parts in wanted.values() for part in parts))
            for file, parts in wanted.items():
                copies[file] = _fetch(checkpoint, manifest.file(file), parts, work)
        tell("writing good chunks")
        where = checkpoint.source.where if checkpoint else ""
        try:
            done = repair(store.ports, target, damage, copies)
        except Refused as error:
            raise Refused(f"{where} does not hold what was published as object {target}: {error}") from error
    return RepairResult(tuple(map(str, damage)), done.files, done.source_bytes, where)


def _anew(
    store: ObjectStore, target: ObjectId, source: Source | None, terms: ImportTerms | None, why: str, tell: Told
) -> RepairResult:
    found = source or _recorded(store, target)
    tell(f"importing anew from {found.where}")
    made = import_model(store, found, None, terms=terms)
    if made.object != target:
        raise Refused(
            f"{why}. That cannot be repaired, and {found.where} holds another model (object {made.object}): "
            "name the source that this one came from"
        )
    return RepairResult((why,), ("all of it",), made.copied_bytes, found.where, anew=True)


def _examined(store: ObjectStore, target: ObjectId, source: Source | None) -> Checkpoint:
    found = source or _recorded(store, target)
    return within_patience(found, "look through", lambda: examine(found))


def _recorded(store: ObjectStore, target: ObjectId) -> Source:
    """Where a model came from last."""
    for record in reversed(ImportRecords(store.paths, store.ports.disk).list()):
        if record.object == target:
            return open_source(record.source)
    raise Refused(f"nobody knows where object {target} came from: name a good copy of the model with --from")


def _fetch(checkpoint: Checkpoint, entry: FileEntry, wanted: Sequence[Range], work: Path) -> Path:
    """A file with the bytes that are damaged, at their places, and holes elsewhere."""
    path = work / entry.name
    with telling("create", path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with telling("write", path), path.open("xb", buffering=0) as copy:
        os.truncate(copy.fileno(), entry.size_bytes)
        for offset, data in _bytes_of(checkpoint, entry, wanted):
            done = 0
            while done < len(data):
                done += os.pwrite(copy.fileno(), data[done:], offset + done)
    return path


def _bytes_of(checkpoint: Checkpoint, entry: FileEntry, wanted: Sequence[Range]) -> Iterator[tuple[int, memoryview]]:
    source = checkpoint.source
    missing = Refused(f"{source.where} has no {entry.name} that fits: name a copy of this very model")
    if not entry.name.endswith(SUFFIX):
        file = next((one for one in checkpoint.small if one.name == entry.name), None)
        if file is None:
            raise missing
        yield 0, memoryview(within_patience(source, f"read {file.name} of", partial(read_all, source, file)))
        return
    shard = next((one for one in checkpoint.shards if one.file.name == entry.name), None)
    if shard is None or shard.layout.plan.file_bytes != entry.size_bytes:
        raise missing
    with source.open(shard.file) as reading:
        for chunk in wanted:
            content = memoryview(bytearray(chunk.length))
            parts = list(shard.layout.parts(chunk.offset, content))
            within_patience(source, f"read {entry.name} of", partial(reading.read, parts))
            yield chunk.offset, content


def _in_chunks(manifest: Manifest, entry: FileEntry, damage: Sequence[Damage]) -> list[Range]:
    """The chunks of a file that hold damaged bytes, those after its end left out."""
    bad = [one.part for one in damage if one.file == entry.name and one.part is not None]
    chunk_bytes, size_bytes = manifest.chunk_bytes, entry.size_bytes
    numbers = {
        number
        for part in bad
        for number in range(part.offset // chunk_bytes, -(-min(part.end, size_bytes) // chunk_bytes))
    }
    whole = [Range(number * chunk_bytes, chunk_bytes) for number in sorted(numbers)]
    return list(
        cut_at_chunks([Range(one.offset, min(one.length, size_bytes - one.offset)) for one in whole], chunk_bytes)
    )


def _remove(store: ObjectStore, work: Path) -> None:
    with suppress(StorageError):  # what is left is collected
        store.ports.disk.remove_tree(work)


def _nobody(_what: str) -> None:
    return None
