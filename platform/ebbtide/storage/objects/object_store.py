"""The store of immutable objects on a shared directory, as one process uses it.

::

    store = ObjectStore.at(Path("/shared/ebbtide"), transport)
    with store.publication(Kind.MODEL, {"model": "org/m"}) as work:
        work.add(work.staging.copy(Path("model.safetensors"), "model.safetensors"))
        object_id = work.publish([("org/m", "latest")])
    with store.open_ref("org/m", "latest") as found:
        tensors = found.read_arrays("model.safetensors")

An open object is leased, so that it is not collected while it is used.

Not guaranteed: protection from other users of the machine beyond modes 0700 and 0600, or from whoever owns the
directory; hashes are against faults, not against an attacker who can write here.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from ebbtide.storage.errors import Corrupt, NotPublished, Refused
from ebbtide.storage.files.durable_files import Disk, is_real_directory, read_small, telling
from ebbtide.storage.foreign_names import is_foreign
from ebbtide.storage.integrity.chunk_index import check_chunk_bytes
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.leases.object_leases import Leases, SharedLeases
from ebbtide.storage.names import ObjectId, attempt, object_id
from ebbtide.storage.objects.manifest import Kind, Manifest, hashing_for
from ebbtide.storage.objects.object_contents import open_contents, read_manifest
from ebbtide.storage.objects.publication import Publication
from ebbtide.storage.objects.refs import Refs
from ebbtide.storage.objects.staging import Staging
from ebbtide.storage.objects.store_entries import object_directories
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide.storage.objects.store_ports import StorePorts
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.transport.transport import CHUNK_BYTES, Transport

SCHEMA = 1
# A ref may be replaced, and its old object collected, between reading the one and opening the other.
MOST_LOOKS = 3


class ObjectStore:
    """One store; as many as one likes may be open on one directory. May be used by several threads."""

    def __init__(self, ports: StorePorts) -> None:
        """For tests and special leases; otherwise see `at`."""
        self.ports = ports
        self.paths = ports.paths
        self.refs = Refs(ports.paths, ports.disk)

    @classmethod
    def at(
        cls,
        root: Path,
        transport: Transport,
        *,
        leases: Leases | None = None,
        disk: Disk | None = None,
        who: str = "",
        budget: Budget | None = None,
    ) -> Self:
        """Open the store at ``root``, and make it if there is none.

        Args:
            root: a directory on the shared filesystem, for this store alone.
            transport: moves the bytes of files.
            leases: heartbeat files below ``root`` if None.
            disk: makes the small changes.
            who: of the leases, for people; host and process if empty.
            budget: what the store may take; all but what others need by default.

        Raises:
            Refused: the directory holds something else, or a newer store.
            NoRoom, TransferFailed: it cannot be made.
        """
        paths, disk = StorePaths(root), disk or Disk()
        leases = leases or SharedLeases(paths.leases, who=who)
        ports = StorePorts(paths, transport, leases, disk, budget or Budget())
        if not _is_store(paths.marker):
            disk.make_directory(root)
            # Looked at again: another process may have made the store meanwhile, and be at work in it.
            # guard: no store is made among a stranger's files
            if (strangers := _strangers(paths)) and not _is_store(paths.marker):
                raise Refused(
                    f"{root} is no store, and not empty ({strangers[0]} is there): name a directory of its own"
                )
            for directory in paths.directories:
                disk.make_directory(directory)
            disk.replace(paths.marker, json.dumps({"schema": SCHEMA, "what": "ebbtide object store"}).encode() + b"\n")
        return cls(ports)

    # ---- reading

    def open(self, wanted: str) -> StoredObject:
        """Open the object of an id.

        Raises:
            NotPublished: there is none.
            Corrupt: something in it is not as published; names the file.
            TransferFailed: it cannot be told.
        """
        found = object_id(wanted)
        with ExitStack() as undo:
            # Before looking: then it stays.
            # guard: an object is held before it is looked at
            undo.enter_context(self.ports.leases.hold(of_object(found), comes_back=True))
            contents = open_contents(self.paths.object(found), found)
            return StoredObject(contents, self.ports.transport, undo.pop_all())

    def open_ref(self, name: str, tag: str) -> StoredObject:
        """Open the object that a ref points to; raises as `open` and `Refs.read` do."""
        ref = self.refs.read(name, tag)
        for _ in range(MOST_LOOKS - 1):
            try:
                return self.open(ref.object)
            except NotPublished:  # guard: a ref that was replaced meanwhile is read again
                before, ref = ref, self.refs.read(name, tag)
                if ref == before:
                    break
        try:
            return self.open(ref.object)
        except NotPublished as error:
            raise NotPublished(f"{ref} points to object {ref.object}, but: {error}") from error

    def manifest(self, wanted: str) -> Manifest:
        """What an object says of itself; nothing of it is leased or read. Raises as `open` does."""
        return read_manifest(self.paths.object(object_id(wanted)), object_id(wanted))

    # ---- publishing

    def publication(
        self,
        kind: Kind,
        key: Mapping[str, str],
        *,
        uses: Iterable[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
        attempt_name: str = "",
        keep: bool = False,
    ) -> Publication:
        """Begin to publish an object; see `Publication` for the arguments.

        Args:
            attempt_name: names the work directory; a fresh one if empty.
        """
        name = attempt(attempt_name or f"{kind.value}-{secrets.token_hex(8)}")
        return Publication(self.ports, name, kind, key, uses=uses, chunk_bytes=chunk_bytes, keep=keep)

    def join(self, attempt_name: str, kind: Kind, key: Mapping[str, str], *, chunk_bytes: int = CHUNK_BYTES) -> Staging:
        """Take part in a publication that another process leads: stage files, and give it the entries.

        ``kind``, ``key`` and ``chunk_bytes`` must be those of the publication.

        Raises:
            NotPublished: there is no such work directory (any more).
            TransferFailed: it cannot be told.
        """
        work = self.paths.work(attempt(attempt_name))
        with telling("open", work):
            is_there = is_real_directory(work)
        if not is_there:
            raise NotPublished(f"there is no work directory {work}: whoever led this publication has ended")
        hashing = hashing_for(kind, key, check_chunk_bytes(chunk_bytes))
        return Staging(work, hashing, self.ports.transport, self.ports.disk)

    def quarantine(self, wanted: str) -> Path:
        """Take a damaged object out of the store, so that nobody uses it and it can be published anew.

        Its refs stay, and lead nowhere until then.

        Returns:
            Where it lies now, for repair.

        Raises:
            NotPublished: there is no such object.
        """
        found = object_id(wanted)
        target = self.paths.aside(self.paths.quarantine, found)
        if not self.ports.disk.move(self.paths.object(found), target):
            raise NotPublished(f"object {found} is not published in {self.paths.root}")
        return target

    def list_objects(self) -> list[ObjectId]:
        """The ids of all objects that are there, sorted, whatever their state; raises TransferFailed."""
        return [ObjectId(path.name) for path in object_directories(self.paths)]


def _strangers(paths: StorePaths) -> list[str]:
    """What is at the root and does not come from making a store there, at once or cut off."""
    ours = {paths.marker.name, *(directory.name for directory in paths.directories)}
    with telling("list", paths.root):
        found = {one.name for one in paths.root.iterdir()}
    others = (name for name in found - ours if not is_foreign(name))
    return sorted(name for name in others if not name.startswith(f".{paths.marker.name}."))


def _is_store(marker: Path) -> bool:
    """Whether there is a store; raises Refused for what is none of ours."""
    try:
        fields = json.loads(read_small(marker, 4096))
        schema = fields["schema"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"this is not the mark of a store: {error}", marker) from error
    if schema != SCHEMA:  # guard: a newer store is refused
        raise Refused(f"{marker} has schema {schema}; this version of ebbtide uses {SCHEMA}: update it")
    return True
