"""Refs: small files that name objects, replaced by rename.

A reader finds the old object or the new one, never half a ref. On NFS it may find the old one for a while after another
node replaced it. So an object that gets or loses a name is made young by that (the time of its COMMIT). The grace of
the garbage collector is far longer than that while, and the old object is still there then.

Compare-and-set is not promised: rename replaces whatever is there, and what could refuse (exclusive creation, locks)
either cannot replace or depends on how each client was mounted. Whoever must not be overtaken by a stale writer puts
an epoch into the ref's name, so that the stale one writes where nobody looks any more: ``train/<run>/e<epoch>``.
"""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError, TransferFailed
from ebbtide.storage.files.durable_files import Disk, read_small, telling
from ebbtide.storage.names import (
    COMMIT,
    ObjectId,
    RefName,
    Tag,
    case_collision,
    name_of_directory,
    object_id,
    ref_directory,
    ref_name,
    tag,
)
from ebbtide.storage.objects.store_entries import ref_directories, tag_files
from ebbtide.storage.objects.store_paths import StorePaths

MAX_REF_BYTES = 4096
SCHEMA = 1


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A name for an object."""

    name: RefName
    tag: Tag
    object: ObjectId

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"


class Misplaced(Corrupt):
    """What stands in a ref's place is the ref of another name: a copy that a person or a tool made.

    Attributes:
        names: the object that it names; None if that cannot be told.
    """

    def __init__(self, message: str, path: Path, *, names: ObjectId | None) -> None:
        super().__init__(message, path)
        self.names = names


class Refs:
    """The refs of one store. Names and tags are checked wherever they come in (`Refused`)."""

    def __init__(self, paths: StorePaths, disk: Disk) -> None:
        self._paths, self._disk = paths, disk

    def read(self, name: str, tag_text: str) -> Ref:
        """What a ref points to.

        Raises:
            NotPublished: there is no such ref; says which tags there are.
            Corrupt: the ref's file makes no sense.
        """
        path = self._paths.ref(ref_name(name), tag(tag_text))
        try:
            raw = read_small(path, MAX_REF_BYTES)
        except FileNotFoundError:
            there = ", ".join(self.tags(name)) or "none"
            raise NotPublished(
                f"there is no ref {name}:{tag_text} in {self._paths.root}; tags of {name}: {there}"
            ) from None
        except ValueError as error:
            raise Corrupt("this is no ref: it is too long", path) from error
        return _parse(raw, path, ref_name(name), tag(tag_text))

    def write(self, name: str, tag_text: str, target: ObjectId) -> Ref:
        """Make a ref point to an object, atomically and durably; the last of several writers wins.

        The caller sees to it that the object is published, and that nobody collects it meanwhile.

        Raises:
            Refused: another ref differs only in case, which some filesystems take for the same.
        """
        ref = Ref(ref_name(name), tag(tag_text), object_id(target))
        path = self._paths.ref(ref.name, ref.tag)
        for directory, new in ((self._paths.refs, path.parent.name), (path.parent, path.name)):
            # guard: refs that differ only in case are refused
            alike = [name for name in _names_in(directory) if name.casefold() == new.casefold()]
            if clash := case_collision([*alike, new]):
                raise Refused(f"{ref} cannot be written: {clash[0]!r} is there already, and differs only in case")
        self._make_young(name, tag_text)  # guard: an object is made young whose ref is written over
        self._disk.touch(self._paths.object(ref.object) / COMMIT)  # guard: an object that gets a name is made young
        raw = (json.dumps({"schema": SCHEMA, "name": ref.name, "tag": ref.tag, "object": ref.object}) + "\n").encode()
        try:
            self._write(path, raw)
        except TransferFailed as error:
            if error.errno != errno.ENOENT:
                raise
            # guard: a ref whose directory went just then is written once more
            self._write(path, raw)  # somebody deleted the name's last ref, and its directory with it
        return ref

    def delete(self, name: str, tag_text: str, *, grace: bool = True) -> bool:
        """Remove a ref; its object stays until it is collected. Whether there was one.

        Args:
            grace: leave the object to those who have just read the ref; not where they can do without it.
        """
        path = self._paths.ref(ref_name(name), tag(tag_text))
        if grace:
            self._make_young(name, tag_text)  # guard: an object is made young whose ref is deleted
        with telling("look at", path.parent):  # guard: a ref that cannot be looked at is an error of ours
            is_there = path.parent.is_dir()
        there = is_there and self._disk.remove(path)
        with suppress(OSError):  # it holds other tags, or somebody just made one
            path.parent.rmdir()
        return there

    def _make_young(self, name: str, tag_text: str) -> None:
        """Before a ref goes: the collector counts the age of its object from now."""
        with suppress(NotPublished, Corrupt, Refused):  # then nobody knows which object that is
            if os.path.lexists(self._paths.ref(ref_name(name), tag(tag_text))):
                self._disk.touch(self._paths.object(self.read(name, tag_text).object) / COMMIT)

    def _write(self, path: Path, raw: bytes) -> None:
        self._disk.make_directory(path.parent)
        self._disk.replace(path, raw)  # guard: a ref is replaced, not written over

    def tags(self, name: str) -> list[Tag]:
        """The tags of a name, sorted; empty if there is no such name."""
        return [Tag(file.name) for file in tag_files(self._paths.refs / ref_directory(ref_name(name)))]

    def names(self) -> list[RefName]:
        """All names that have tags, sorted."""
        found = (name_of_directory(directory.name) for directory in ref_directories(self._paths))
        return sorted(name for name in found if name is not None and self.tags(name))

    def pairs(self, prefix: str = "") -> list[tuple[RefName, Tag]]:
        """Names and tags of all refs whose name begins with ``prefix``, sorted, whatever is in their files."""
        return [(name, text) for name in self.names() if name.startswith(prefix) for text in self.tags(name)]

    def readable(self) -> list[Ref]:
        """All refs that make sense, sorted; what is wrong with another says who reads that one."""
        found = []
        for name, text in self.pairs():
            with suppress(StorageError):
                found.append(self.read(name, text))
        return found

    def list(self, prefix: str = "") -> list[Ref]:
        """All refs whose name begins with ``prefix``, sorted; those that are deleted meanwhile are left out.

        Raises:
            Corrupt: one of them makes no sense.
        """
        found = []
        for name, text in self.pairs(prefix):
            with suppress(NotPublished):
                found.append(self.read(name, text))
        return found


def _parse(raw: bytes, path: Path, name: RefName, tag_text: Tag) -> Ref:
    try:
        fields = json.loads(raw)
        # guard: a newer ref is refused
        if isinstance(fields, dict) and isinstance(fields.get("schema"), int) and fields["schema"] > SCHEMA:
            raise Refused(f"{path} has schema {fields['schema']}; this version of ebbtide reads {SCHEMA}: update it")
        # guard: a ref is of its own name
        if fields.keys() != {"schema", "name", "tag", "object"} or (fields["name"], fields["tag"]) != (name, tag_text):
            raise Misplaced(f"this is not the ref {name}:{tag_text}", path, names=_named(fields))
        return Ref(name, tag_text, object_id(fields["object"]))
    except Refused as error:
        if "schema" in str(error):
            raise
        raise Corrupt(f"this ref makes no sense: {error}", path) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"this ref makes no sense: {error}", path) from error


def _named(fields: Mapping[str, object]) -> ObjectId | None:
    found = fields.get("object")
    with suppress(Refused):
        return object_id(found) if isinstance(found, str) else None
    return None


def _names_in(directory: Path) -> list[str]:
    with telling("list", directory), suppress(FileNotFoundError):
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    return []
