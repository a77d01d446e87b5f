"""From a work directory to a published object, in steps that may be cut off between any two.

::

    OPEN -> SEALED -> PLACED -> NAMED          and DROPPED from all but the last

Until the rename that places it nobody can see anything of it; after it, all of it is there. A process that is killed
leaves either a work directory or an object without a ref: both are collected later, and whoever publishes the same
again finds nothing in the way. Publishing what exists is a success: the id says that the bytes are the same.

The order of syncs makes that true after a power cut too: files, their indexes, manifest, COMMIT, directories, then the
rename and the directories it concerns, then the refs.

Not guaranteed: that a ref is still what was written when `Publication.publish` returns; its last writer wins.
And not more than `open_contents` sees of an object that stood there before: its bytes are checked by whoever reads
them, and a damaged one is moved to quarantine, out of the way of publishing it anew.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from ebbtide.storage.errors import Corrupt, NoRoom, NotPublished, Refused, StorageError, Superseded
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.integrity.chunk_index import check_chunk_bytes
from ebbtide.storage.leases.lease_subjects import of_object, of_work
from ebbtide.storage.leases.object_leases import Lease
from ebbtide.storage.names import COMMIT, MANIFEST, Attempt, FileName, ObjectId, index_name, object_id, ref_name, tag
from ebbtide.storage.objects.manifest import FileEntry, Kind, Manifest, commit_bytes, hashing_for, make_manifest
from ebbtide.storage.objects.object_contents import open_contents, read_index, read_manifest
from ebbtide.storage.objects.refs import Refs
from ebbtide.storage.objects.staging import Staging
from ebbtide.storage.objects.store_ports import StorePorts
from ebbtide.storage.transport.transport import CHUNK_BYTES

# Each turn means that a collector took the object between two steps of ours; more than a few is no coincidence.
MOST_TURNS = 5


class Stage(Enum):
    """How far a publication has come."""

    OPEN = "open"  # the work directory is there, files are being written into it
    SEALED = "sealed"  # manifest and COMMIT are in it, everything is synced
    PLACED = "placed"  # the object stands under its id
    NAMED = "named"  # the refs that were asked for point to it
    DROPPED = "dropped"  # given up; the work directory is gone, or will be collected


EDGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.OPEN: frozenset(
        {
            Stage.SEALED,  # all files are staged, the manifest and COMMIT are written
            Stage.DROPPED,  # something failed, or the caller gave up
        }
    ),
    Stage.SEALED: frozenset(
        {
            Stage.PLACED,  # renamed, or the same content stands there already
            Stage.DROPPED,  # it could not be placed
        }
    ),
    Stage.PLACED: frozenset(
        {
            Stage.NAMED,  # all refs are written, and the object still stands
            Stage.SEALED,  # a collector took the one that stood there before: place our own
            Stage.DROPPED,  # a ref could not be written; the object stays until it is collected
        }
    ),
    Stage.NAMED: frozenset(),
    Stage.DROPPED: frozenset(),
}


class Publication:
    """One try to publish an object; a context manager. For one thread, but `staging` may be used by many."""

    def __init__(
        self,
        ports: StorePorts,
        attempt: Attempt,
        kind: Kind,
        key: Mapping[str, str],
        *,
        uses: Iterable[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
        keep: bool = False,
    ) -> None:
        """Nothing is done before the context is entered.

        Args:
            ports: of the store.
            attempt: names the work directory; no other process may work under it (see ``lease_holder.claim``).
            kind: of object.
            key: what tells objects of the kind apart.
            uses: other objects that must live as long as this one.
            chunk_bytes: length of the pieces that are hashed and repaired.
            keep: leave the work directory when this fails, so that a later attempt of the same name can go on
                with the files in it. It is removed all the same if there is no room.
        """
        self.attempt, self.stage = attempt, Stage.OPEN
        self._ports, self._kind, self._key, self._keep = ports, kind, dict(key), keep
        self._uses = tuple(object_id(use) for use in uses)
        self._chunk_bytes = check_chunk_bytes(chunk_bytes)
        self._work = ports.paths.work(attempt)
        self._entries: dict[str, FileEntry] = {}
        self._held = ExitStack()
        self._lease: Lease | None = None
        hashing = hashing_for(kind, self._key, chunk_bytes)
        self.staging = Staging(self._work, hashing, ports.transport, ports.disk)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.push(self._held)
            self._lease = self._held.enter_context(self._ports.leases.hold(of_work(self.attempt)))
            for used in self._uses:
                # guard: what an object uses is held while it is published
                self._held.enter_context(self._ports.leases.hold(of_object(used)))
                read_manifest(self._ports.paths.object(used), used)  # guard: what an object uses must be there
            if not self._keep:
                undo.callback(self._remove_work)
            self._ports.disk.make_directory(self._work)
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:
            if self.stage is not Stage.NAMED:
                self._drop(
                    remove=(
                        not self._keep
                        or isinstance(error, NoRoom)  # guard: a full disk removes even work that is to be kept
                    )
                )

    def add(self, *entries: FileEntry) -> None:
        """Make staged files part of the object, whichever process staged them; a name again replaces the earlier one.

        Raises:
            Refused: it is too late.
        """
        if self.stage is not Stage.OPEN:  # guard: files come too late after the sealing
            raise Refused(f"files cannot be added any more: this publication is {self.stage.value}")
        self._entries |= {entry.name: entry for entry in entries}

    def publish(self, refs: Iterable[tuple[str, str]] = ()) -> ObjectId:
        """Publish what was added.

        Args:
            refs: names and tags that shall point to the object, such as ``("org/model", "latest")``.

        Returns:
            The object's id. Everything is durable then.

        Raises:
            Refused: a name cannot be used, or files of the object are not there.
            NoRoom: no space; the work is removed, the store is as it was.
            Superseded: the work directory was taken away, as that of a dead process.
            StorageError: anything else.
        """
        wanted = [(ref_name(name), tag(text)) for name, text in refs]
        manifest = self._seal()
        # guard: an object is held until its refs are written
        self._held.enter_context(self._ports.leases.hold(of_object(manifest.id)))
        for _ in range(MOST_TURNS):
            self._place(manifest)
            book = Refs(self._ports.paths, self._ports.disk)
            for name, text in wanted:
                book.write(name, text, manifest.id)
            if self._still_there(manifest.id):
                self._go(Stage.NAMED)
                self._remove(self._work)  # it is still there if somebody else published the same before
                return manifest.id
            self._go(Stage.SEALED)
        # guard: an object that keeps going is an error in the end
        raise NotPublished(f"object {manifest.id} was taken away {MOST_TURNS} times while it was being published")

    # ---- the edges

    def _seal(self) -> Manifest:
        """OPEN -> SEALED."""
        if self.stage is not Stage.OPEN:
            raise Refused(f"this cannot be published (again): it is {self.stage.value}")
        manifest = make_manifest(
            kind=self._kind,
            key=self._key,
            chunk_bytes=self._chunk_bytes,
            content_hash=self.staging.hashing.content_kind,
            files=tuple(self._entries.values()),
            uses=self._uses,
        )
        self._check_staged(manifest)
        disk, raw = self._ports.disk, manifest.to_bytes()
        self._remove_strays(manifest)
        disk.write(self._work / MANIFEST, raw)
        disk.write(self._work / COMMIT, commit_bytes(raw))  # guard: COMMIT is written after everything else
        for folder in sorted({(self._work / entry.name).parent for entry in manifest.files} | {self._work}):
            disk.sync_directory(folder)  # guard: the directories of the files are synced before the rename
        self._go(Stage.SEALED)
        return manifest

    def _place(self, manifest: Manifest) -> None:
        """SEALED -> PLACED."""
        assert self._lease is not None
        paths, disk = self._ports.paths, self._ports.disk
        target = paths.object(manifest.id)
        for _ in range(MOST_TURNS):
            self._lease.confirm()  # guard: a work directory is placed only by who holds its lease
            if disk.move(self._work, target):
                break
            # Young again for the collector first, and then looked at.
            if (
                disk.touch(target / COMMIT)  # guard: an object that stands there is made young before it is looked at
                and self._stands(manifest.id)  # guard: what stands there counts only if it is whole
            ):
                # guard: who finds an object there syncs its directory
                disk.sync_directory(target.parent)  # whoever placed it may not have come that far
                break
            with telling("look at", self._work):  # guard: a work directory that cannot be looked at is an error of ours
                is_there = self._work.is_dir()
            if not is_there:  # guard: a work directory that was taken away ends the publication
                raise Superseded(f"the work directory {self._work} was taken away: this process was taken for dead")
            # guard: a damaged object is moved aside to make its place free
            disk.move(target, paths.aside(paths.quarantine, manifest.id))
        else:
            raise NotPublished(f"object {manifest.id} cannot be placed: damaged ones keep coming back at {target}")
        self._go(Stage.PLACED)

    def _drop(self, *, remove: bool) -> None:
        self._go(Stage.DROPPED)
        if remove:
            self._remove_work()

    def _remove_work(self) -> None:
        """Under another name first: who still writes into it, in another process, finds no place for one more file."""
        aside = self._ports.paths.aside(self._ports.paths.trash, self.attempt)
        with suppress(StorageError):  # whatever led here is what is to be told; the collector gets the rest
            self._ports.disk.move(self._work, aside)
        self._remove(aside)
        self._remove(self._work)

    def _remove(self, tree: Path) -> None:
        with suppress(StorageError):
            self._ports.disk.remove_tree(tree)

    def _go(self, stage: Stage) -> None:
        if stage not in EDGES[self.stage]:  # guard: the stages of a publication follow their table
            raise Refused(f"a publication that is {self.stage.value} cannot become {stage.value}")
        self.stage = stage

    # ---- what they look at

    def _check_staged(self, manifest: Manifest) -> None:
        for entry in manifest.files:
            path = self._work / entry.name
            try:
                found = path.stat(follow_symlinks=False).st_size
            except OSError as error:  # guard: files that are to be published are there
                raise Refused(f"file {entry.name} is to be published but cannot be found in {self._work}") from error
            if found != entry.size_bytes:  # guard: files that are to be published have their length
                raise Refused(f"file {entry.name} was staged with {entry.size_bytes} bytes and now has {found}")
            if entry.index is not None:  # guard: indexes that are to be published are those of their files
                read_index(self._work, manifest, entry)

    def _remove_strays(self, manifest: Manifest) -> None:
        """Files that an earlier attempt left here, and that are not part of the object."""
        belong = {entry.name for entry in manifest.files}
        belong |= {index_name(FileName(entry.name)) for entry in manifest.files if entry.index}
        with telling("list", self._work):
            found = [Path(folder) / name for folder, _, names in os.walk(self._work) for name in names]
        for path in found:
            # guard: what an earlier attempt left is no part of the object
            if str(path.relative_to(self._work)) not in belong:
                self._ports.disk.remove(path)

    def _stands(self, wanted: ObjectId) -> bool:
        """Whether the object is there, as far as can be told without reading all of it."""
        try:
            open_contents(self._ports.paths.object(wanted), wanted)
        except (NotPublished, Corrupt):
            return False
        return True

    def _still_there(self, wanted: ObjectId) -> bool:
        try:
            read_manifest(self._ports.paths.object(wanted), wanted)
        except NotPublished:
            return False  # guard: after its refs the object is looked for once more
        return True
