"""Bringing a model into the store: once, however many processes on however many nodes ask for it.

All that ask look through the source and come to the same fingerprint. One of them copies (`single_flight`), in a work
directory named after fingerprint and attempt; the others watch, and get the same object. If it dies, the next takes
over its work directory by renaming it, so that nothing that the dead one (or a paused one that wakes up) does by name
reaches it any more, and goes on with the chunks that are right.

The record of the import is written before the object is published: whoever is killed between the two finds the object
by it, or nothing.

Not guaranteed: that bytes are read once where a source is vague (see ``source``), or by attempts that are cut off
before a chunk is on disk.
"""

import errno
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ebbtide.storage.coordination.flight_progress import Progress
from ebbtide.storage.coordination.single_flight import Leading, Terms, Waiting, run_single_flight
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError, Superseded, TransferFailed
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.integrity.chunk_index import chunk_count
from ebbtide.storage.leases.object_leases import this_process
from ebbtide.storage.maintenance.space_reservation import reserve
from ebbtide.storage.models.importer.import_progress import ImportProgress, Observe, Phase, Tally
from ebbtide.storage.models.importer.import_records import ImportRecord, ImportRecords, flights
from ebbtide.storage.models.importer.import_terms import How, Imported, ImportTerms
from ebbtide.storage.models.importer.shard_writer import ShardWriter, Workplace
from ebbtide.storage.models.sources.source import Source, read_all
from ebbtide.storage.models.sources.source_checkpoint import Checkpoint, examine
from ebbtide.storage.models.sources.source_patience import within_patience
from ebbtide.storage.names import Attempt, ObjectId, attempt, case_collision, ref_name, tag
from ebbtide.storage.objects.manifest import FileEntry, Kind, make_manifest
from ebbtide.storage.objects.object_contents import open_contents
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.publication import Publication
from ebbtide.storage.safetensors.pickles import refuse_pickle

# Of an index for each chunk, of manifest and directories, for the reservation: more than they need.
_BYTES_PER_CHUNK = 128
_SLACK_BYTES = 1 << 20
# An object may be collected between its import and its ref, if that takes an hour; each turn means that it was.
MOST_TURNS = 3
PATIENT_S = 15.0  # without progress of another process before its death is thought of: three of its beats


@dataclass(frozen=True, slots=True)
class _Made:
    """What one flight brought."""

    object: ObjectId
    how: How = How.SHARED
    copied_bytes: int = 0
    saved_bytes: int = 0
    seconds: float = 0.0


def import_model(
    store: ObjectStore,
    source: Source,
    ref: tuple[str, str] | None,
    *,
    terms: ImportTerms | None = None,
    observe: Observe | None = None,
) -> Imported:
    """Have a model in the store, and its ref point to it.

    Args:
        store: where.
        source: where from.
        ref: name and tag that the model gets; None: no name, so that it is collected when nobody holds it.
        terms: see there.
        observe: told how far it is, from any thread.

    Raises:
        Refused: the source holds no model that can be imported, or changed meanwhile.
        NoRoom: there is no space for it.
        WaitTimeout: another process was at it until the deadline.
        StorageError: anything else. Nothing of it is in the store then; a further try goes on where this one ended.
    """
    return _Import(store, source, ref, terms or ImportTerms(), observe or _nobody).run()


class _Import:
    def __init__(
        self, store: ObjectStore, source: Source, ref: tuple[str, str] | None, terms: ImportTerms, observe: Observe
    ) -> None:
        self._store, self._source, self._terms, self._observe = store, source, terms, observe
        self._ref = None if ref is None else (ref_name(ref[0]), tag(ref[1]))
        self._records = ImportRecords(store.paths, store.ports.disk)
        self._seen: Progress | None = None
        self._moved_s = 0.0
        self._before: ImportRecord | None = None  # of a vague source: one that is not to be believed

    def run(self) -> Imported:
        began_s = time.monotonic()
        self._observe(ImportProgress(Phase.LOOKING))
        self._check_name()
        checkpoint = within_patience(self._source, "look through", lambda: examine(self._source))
        if checkpoint.is_vague:
            self._before = self._records.read(checkpoint.fingerprint)
        for _ in range(MOST_TURNS):
            made = self._known(checkpoint) or self._fly(checkpoint)
            try:
                moved = self._name(made.object)
            except NotPublished:
                continue
            return Imported(
                object=made.object,
                how=made.how,
                ref=":".join(self._ref or ()),
                moved_ref=moved,
                size_bytes=checkpoint.size_bytes,
                num_tensors=checkpoint.num_tensors,
                copied_bytes=made.copied_bytes,
                saved_bytes=made.saved_bytes,
                seconds=made.seconds or time.monotonic() - began_s,
                notes=checkpoint.notes,
            )
        raise NotPublished(f"what was imported from {self._source.where} was collected {MOST_TURNS} times at once")

    # ---- together with others

    def _known(self, checkpoint: Checkpoint) -> _Made | None:
        found = self._look(checkpoint)
        return None if found is None else _Made(found.object, How.KNOWN)

    def _fly(self, checkpoint: Checkpoint) -> _Made:
        terms = self._terms
        return run_single_flight(
            flights(self._store.paths),
            f"import {checkpoint.fingerprint}",
            work=lambda leading: self._lead(leading, checkpoint),
            look=lambda: self._look(checkpoint),
            terms=Terms(terms.who or this_process(), terms.deadline_s, pace=terms.pace),
            on_wait=self._wait,
        )

    def _look(self, checkpoint: Checkpoint) -> _Made | None:
        """The object that was imported from this very source, if it is there and whole, as far as can be told."""
        record = self._records.read(checkpoint.fingerprint)
        if record is None or (self._before is not None and record.token == self._before.token):
            return None
        try:
            open_contents(self._store.paths.object(record.object), record.object)
        except (NotPublished, Corrupt):
            return None
        return _Made(record.object)

    def _wait(self, waiting: Waiting) -> None:
        progress, why = waiting.progress, waiting.why
        done, total = (progress.done_bytes, progress.total_bytes) if progress else (0, 0)
        if progress != self._seen:
            self._seen, self._moved_s = progress, waiting.waited_s
        elif (still_s := waiting.waited_s - self._moved_s) > PATIENT_S and progress is not None:
            why += f" (no progress for {still_s:.0f} s; if it is dead, this process goes on with its work in a minute)"
        self._observe(ImportProgress(Phase.WAITING, done, total, why=why))

    def _check_name(self) -> None:
        """Before anything is copied: raises Refused for a name that only differs in case from one that is there."""
        if self._ref is None:
            return
        name, tag_text = self._ref
        refs = self._store.refs
        for there, new in ((refs.names(), name), (refs.tags(name), tag_text)):
            if clash := case_collision([*there, new]):
                raise Refused(
                    f"{name}:{tag_text} differs from {clash[0]!r}, which is there, only in case: take another"
                )

    def _name(self, target: ObjectId) -> bool:
        """Let the ref point to the object; whether it did not before. Raises NotPublished if the object is gone."""
        with self._store.open(target):
            if self._ref is None:
                return False
            try:
                if self._store.refs.read(*self._ref).object == target:
                    return False
            except (NotPublished, Corrupt):
                pass
            self._store.refs.write(*self._ref, target)
            self._store.manifest(target)
        return True

    # ---- alone

    def _lead(self, leading: Leading, checkpoint: Checkpoint) -> _Made:
        self._check_unchanged(checkpoint)
        name = self._take_over(checkpoint, leading.attempt)
        work = self._store.paths.work(name)
        try:
            with self._store.publication(
                Kind.MODEL, checkpoint.key, chunk_bytes=self._terms.chunk_bytes, attempt_name=name, keep=True
            ) as publication:
                return self._copy(leading, checkpoint, publication)
        except Superseded as error:
            _confirm(leading)
            # Still the leader: only the work directory was taken away, as by a collector that took this one for dead.
            raise TransferFailed("publish", work, errno=errno.ESTALE, hint=str(error)) from error
        except StorageError as error:
            _confirm(leading)
            if isinstance(error, Refused):
                with suppress(StorageError):  # the refusal is what is to be told; the collector gets the rest
                    self._store.ports.disk.remove_tree(work)  # nobody can go on with it
            raise

    def _copy(self, leading: Leading, checkpoint: Checkpoint, publication: Publication) -> _Made:
        terms, ports, began_s = self._terms, self._store.ports, time.monotonic()
        reserve(ports, publication.attempt, _needed_bytes(checkpoint, terms.chunk_bytes))
        tally = Tally(leading, checkpoint.size_bytes, self._observe)
        place = Workplace(ports, publication.staging, tally, terms.stretch_bytes)
        entries: list[FileEntry] = []
        try:
            for file in checkpoint.small:
                tally.check()
                content = within_patience(self._source, f"read {file.name} of", partial(read_all, self._source, file))
                refuse_pickle(Path(file.name), content)
                entries.append(publication.staging.write_bytes(file.name, content))
                tally.copied(len(content))
            for shard in checkpoint.shards:
                tally.check()
                entries.append(ShardWriter(place, self._source, shard).write())
        except TransferFailed:
            self._check_unchanged(checkpoint)  # says more than that a read failed
            raise
        self._check_unchanged(checkpoint)
        tally.publishing()
        publication.add(*entries)
        target = make_manifest(
            kind=Kind.MODEL,
            key=checkpoint.key,
            chunk_bytes=terms.chunk_bytes,
            content_hash=publication.staging.hashing.content_kind,
            files=tuple(entries),
        ).id
        is_there = target in self._store.list_objects()
        leading.confirm()
        self._records.write(checkpoint.fingerprint, self._source.where, target, time.time())
        published = publication.publish()
        assert published == target
        how = How.SAME if is_there else How.COPIED
        return _Made(target, how, tally.copied_bytes, tally.saved_bytes, time.monotonic() - began_s)

    def _check_unchanged(self, checkpoint: Checkpoint) -> None:
        within_patience(self._source, "look at", checkpoint.check_unchanged)

    def _take_over(self, checkpoint: Checkpoint, number: int) -> Attempt:
        """The work directory of this attempt: an earlier one's, renamed, if there is one."""
        stem = f"import-{checkpoint.fingerprint[:32]}-"
        mine = attempt(f"{stem}{number}")
        if checkpoint.is_vague:
            return attempt(f"{stem}{number}-{secrets.token_hex(8)}")
        incoming = self._store.paths.incoming
        with telling("list", incoming):
            found = [re.fullmatch(rf"{stem}([0-9]{{1,9}})", one.name) for one in incoming.iterdir()]
        earlier = sorted((int(one[1]) for one in found if one is not None), reverse=True)
        for other in earlier:
            if other != number and self._store.ports.disk.move(incoming / f"{stem}{other}", incoming / mine):
                break
        return mine


def _confirm(leading: Leading) -> None:
    """After an error: raise Superseded if it only came of another process that took the work over meanwhile."""
    try:
        leading.confirm()
    except Superseded:
        raise
    except StorageError:
        return  # nobody can tell


def _needed_bytes(checkpoint: Checkpoint, chunk_bytes: int) -> int:
    sizes = [file.size_bytes for file in checkpoint.small]
    sizes += [shard.layout.plan.file_bytes for shard in checkpoint.shards]
    return sum(sizes) + _BYTES_PER_CHUNK * sum(chunk_count(size, chunk_bytes) + 2 for size in sizes) + _SLACK_BYTES


def _nobody(_progress: ImportProgress) -> None:
    return None
