"""Artefacts in the store: restored into a new directory, published from a used one.

Not guaranteed: that the newest one is restored. The first healthy start publishes; later ones only if they had to add
much, so that a cache does not grow a little with every start.
"""

import shutil
import time
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebbtide.storage.coordination.single_flight import Leading, Terms, run_single_flight
from ebbtide.storage.errors import NotPublished, Refused, StorageError
from ebbtide.storage.leases.lease_holder import DEFAULT_PACE
from ebbtide.storage.leases.object_leases import this_process
from ebbtide.storage.maintenance.space_reservation import reserve
from ebbtide.storage.models.registry.derived_artifacts import mark_used
from ebbtide.storage.names import ObjectId, ref_name, tag
from ebbtide.storage.objects.manifest import Kind, Manifest
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide_serve.compile_cache.bundle import (
    Found,
    bundle_fill,
    check_bundle,
    first_changed,
    gather,
    plan_bundle,
    unpack,
)
from ebbtide_serve.compile_cache.fingerprint import Fingerprint
from ebbtide_serve.compile_cache.relocation import relocate

TAG = "latest"
NAME = "cache.safetensors"
FLIGHTS = "flights"
ADDED_SHARE = 0.25  # of what was restored: a start that adds more than this found too little
OTHERS_S = 2 * DEFAULT_PACE.stale_after_s


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore brought.

    Attributes:
        object: which artefact; None if there is none that can be used.
        why: why not.
        suspect: an artefact that is there and was left alone, since a start with it failed.
    """

    object: ObjectId | None
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    why: str = ""
    suspect: ObjectId | None = None


def restore(
    store: ObjectStore, wanted: Fingerprint, target: Path, *, suspects: Container[ObjectId] = frozenset()
) -> Restored:
    """Fill the directory ``target``, which must not be there; if nothing can be restored it is made and empty.

    Args:
        suspects: artefacts that are not to be used.

    Raises:
        OSError: not even an empty directory can be made.
    """
    began_s, part = time.monotonic(), target.with_name(f"{target.name}.part")
    try:
        suspect = store.refs.read(wanted.ref_name, TAG).object
        if suspect in suspects:
            target.mkdir(mode=0o700, parents=True)
            why = f"a start with object {suspect} did not come through on this node: this one does without"
            return Restored(None, seconds=time.monotonic() - began_s, why=why, suspect=suspect)
        restored = _restore(store, wanted, part, began_s)
        relocate(part, target)
        part.rename(target)
    except (StorageError, OSError, MemoryError) as error:
        shutil.rmtree(part, ignore_errors=True)
        target.mkdir(mode=0o700, parents=True)
        return Restored(None, seconds=time.monotonic() - began_s, why=str(error))
    with suppress(StorageError):
        mark_used(store, ref_name(wanted.ref_name), tag(TAG))
    return restored


def _restore(store: ObjectStore, wanted: Fingerprint, part: Path, began_s: float) -> Restored:
    with store.open_ref(wanted.ref_name, TAG) as found:
        _check_ours(found, wanted)
        header = found.header(NAME)
        check_bundle(header)
        content = np.empty(header.file_bytes, dtype=np.uint8)
        found.read_file(NAME, into=content.data)
        part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unpack(header, content.data, part)
        size_bytes = header.file_bytes - header.data_offset
        return Restored(found.id, len(header.entries), size_bytes, time.monotonic() - began_s)


def publish(
    store: ObjectStore,
    made: Fingerprint,
    source: Path,
    restored: Restored,
    *,
    others_s: float = OTHERS_S,
) -> tuple[ObjectId | None, str]:
    """Publish a directory that a healthy engine has filled, if that is worth it; once however many try.

    Args:
        source: the directory; what the engine writes meanwhile makes this try fail.
        restored: what was in it at first. An artefact that is suspect is taken out of the store.
        others_s: how long to watch another process that is at it.

    Returns:
        The artefact and "", or None and why not.
    """
    try:
        if restored.suspect is not None:
            with suppress(NotPublished):
                store.quarantine(restored.suspect)  # without it the engine is healthy
        files = gather(source)
        total = sum(file.size_bytes for file in files)
        if not files:
            return None, "the engine keeps no caches"
        if restored.object is not None and total <= (1 + ADDED_SHARE) * restored.bytes:
            return None, f"object {restored.object} has nearly all of it"
        work = _Work(store, made, files, restored)
        return run_single_flight(
            store.paths.root / FLIGHTS,
            made.ref_name,
            work=work.lead,
            look=work.look,
            terms=Terms(who=f"compiled code, {this_process()}", deadline_s=others_s, tries=1),
        ), ""
    except (StorageError, OSError) as error:
        return None, str(error)


@dataclass(frozen=True, slots=True)
class _Work:
    store: ObjectStore
    made: Fingerprint
    files: list[Found]
    restored: Restored

    def look(self) -> ObjectId | None:
        """What somebody else published in the meantime."""
        try:
            found = self.store.refs.read(self.made.ref_name, TAG).object
            manifest = self.store.manifest(found)
        except StorageError:
            return None
        stale = found == self.restored.object or bool(self.restored.why and not self._can_be_used(found))
        return None if stale or not _is_ours(manifest, self.made) else found

    def _can_be_used(self, found: ObjectId) -> bool:
        """Whether what stands there is sound: a damaged one was the reason for which this one was made."""
        try:
            with self.store.open(found) as stored:
                check_bundle(stored.header(NAME))
                stored.read_file(NAME)
        except StorageError:
            return False
        return True

    def lead(self, leading: Leading) -> ObjectId:
        """Write and publish it."""
        attempt = f"artefact-{self.made.digest[:16]}-{leading.attempt}-{time.time_ns():x}"
        plan = plan_bundle(self.files)
        fill = bundle_fill(plan, self.files)

        with self.store.publication(Kind.ARTEFACT, dict(self.made.facts), attempt_name=attempt) as publication:
            reserve(self.store.ports, publication.attempt, plan.file_bytes)
            publication.add(publication.staging.write(NAME, plan.file_bytes, fill))
            if name := first_changed(self.files):
                raise StorageError(f"{name} was written while it was being kept; the next start tries again")
            leading.confirm()
            self._set_damaged_aside()
            return publication.publish([(self.made.ref_name, TAG)])

    def _set_damaged_aside(self) -> None:
        """One of the same content that is damaged would be taken for this one."""
        try:
            found = self.store.refs.read(self.made.ref_name, TAG).object
        except StorageError:
            return
        with suppress(StorageError):  # if that cannot be told, it is damaged
            if not _is_ours(self.store.manifest(found), self.made):
                return  # somebody's own, whatever it does under this name
        if not self._can_be_used(found):
            with suppress(NotPublished):
                self.store.quarantine(found)


def _check_ours(found: StoredObject, wanted: Fingerprint) -> None:
    if not _is_ours(found.manifest, wanted):
        raise Refused(f"object {found.id} under {wanted.ref_name} is no cache for this engine here")


def _is_ours(manifest: Manifest, wanted: Fingerprint) -> bool:
    return manifest.kind is Kind.ARTEFACT and dict(manifest.key) == dict(wanted.facts)
