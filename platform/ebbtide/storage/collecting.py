"""Looking at a store and doing what ``garbage`` planned.

`survey` looks, `plan` decides, `collect` acts; a round of all three trashes what nobody needs, and a later round
removes it. A round may be cut off anywhere, and several may run at once. Ages are taken by the filesystem's own clock,
so that a node whose clock is wrong condemns nothing.

Not guaranteed: that a round is quick. It waits for holders that are silent until they count as dead, a minute.
"""

import os
import secrets
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage.durable import TEMPORARY_SUFFIX, is_real_directory, telling
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError
from ebbtide.storage.garbage import Fate, FoundAside, FoundObject, FoundWork, Survey, Verdict
from ebbtide.storage.leases import of_work
from ebbtide.storage.names import COMMIT, Attempt, ObjectId, object_id
from ebbtide.storage.opening import read_manifest
from ebbtide.storage.ports import StorePorts
from ebbtide.storage.refs import Refs


@dataclass(slots=True)
class Collected:
    """What a round did.

    Attributes:
        done: what was planned and happened.
        missed: what somebody else did meanwhile, or what stood in the way.
        failed: what the filesystem refused.
    """

    done: list[Verdict] = field(default_factory=list)
    missed: list[Verdict] = field(default_factory=list)
    failed: list[tuple[Verdict, StorageError]] = field(default_factory=list)

    @property
    def removed_bytes(self) -> int:
        """Bytes that are free now."""
        return sum(one.size_bytes for one in self.done if one.fate is Fate.REMOVE)


def survey(ports: StorePorts, *, judge: bool = True) -> Survey:
    """Look at everything in a store.

    The order matters: first what is there, then who needs it, so that no need is missed that came before.

    Args:
        ports: of the store.
        judge: tell living holders from dead ones, which may take a minute; else every lease counts as living.

    Raises:
        TransferFailed: something cannot be looked at; nothing may be removed then.
    """
    paths, now_s = ports.paths, filesystem_now_s(ports)
    trash = tuple(_aside(path, now_s) for path in _listed(paths.trash))
    quarantine = tuple(_aside(path, now_s) for path in _listed(paths.quarantine))
    work = tuple(
        FoundWork(Attempt(path.name), path, now_s - _newest_s(path), tree_bytes(path))
        for path in _listed(paths.incoming)
    )
    objects = tuple(one for path in _listed(paths.objects) if (one := _object(path, now_s)) is not None)
    temporaries = tuple(
        _aside(path, now_s)
        for folder in [paths.root, paths.trash, *_listed(paths.refs)]
        for path in _listed(folder, hidden=True)
        if path.name.endswith(TEMPORARY_SUFFIX)
    )
    refs, bad_refs = _refs(ports)
    living = ports.leases.living() if judge else ports.leases.present()
    return Survey(objects, work, trash, quarantine, refs, bad_refs, living, temporaries)


def collect(ports: StorePorts, verdicts: Iterable[Verdict]) -> Collected:
    """Do what was planned; what fails is told in the result, and the rest is done."""
    result = Collected()
    for verdict in verdicts:
        if verdict.fate is Fate.KEEP:
            continue
        try:
            done = _do(ports, verdict)
        except StorageError as error:
            result.failed.append((verdict, error))
            continue
        (result.done if done else result.missed).append(verdict)
    return result


def filesystem_now_s(ports: StorePorts) -> float:
    """The time that the filesystem gives to a file made now: its server's clock, not this node's."""
    path = ports.paths.trash / f".clock.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    ports.disk.write(path, b"")
    with telling("look at", path):
        now_s = path.stat().st_mtime
    ports.disk.remove(path)
    return now_s


def tree_bytes(path: Path, *, but: str = "") -> int:
    """The length of all files below a directory, or of one file; those called ``but`` are left out."""
    return sum(one.st_size for place, one in _tree(path) if not stat.S_ISDIR(one.st_mode) and place.name != but)


def _do(ports: StorePorts, verdict: Verdict) -> bool:
    disk, paths = ports.disk, ports.paths
    match verdict.fate:
        case Fate.TRASH:
            name = verdict.object or of_work(Attempt(verdict.path.name))
            if is_real_directory(verdict.path):
                disk.touch(verdict.path)  # its age in the trash counts from now
            return disk.move(verdict.path, paths.aside(paths.trash, name))
        case Fate.RESTORE:
            assert verdict.object is not None
            return _restore(ports, verdict.path, verdict.object)
        case Fate.REMOVE:
            disk.remove_tree(verdict.path)
            return True
        case Fate.KEEP:
            return False


def _restore(ports: StorePorts, source: Path, wanted: ObjectId) -> bool:
    """Move an object back; what stands in its place and cannot be read goes to quarantine first."""
    target = ports.paths.object(wanted)
    if ports.disk.move(source, target):
        return True
    try:
        read_manifest(target, wanted)
    except (NotPublished, Corrupt, Refused):
        ports.disk.move(target, ports.paths.aside(ports.paths.quarantine, wanted))
        return ports.disk.move(source, target)
    return False


def _object(path: Path, now_s: float) -> FoundObject | None:
    """What is to be known of an object; None for a stranger in its place, which is left alone."""
    try:
        found = object_id(path.name)
    except Refused:
        return None
    commit = path / COMMIT
    with telling("look at", path), suppress(FileNotFoundError):
        age_s = now_s - (commit if commit.exists() else path).stat().st_mtime
        try:
            manifest = read_manifest(path, found)
        except (NotPublished, Corrupt, Refused) as error:
            return FoundObject(found, path, age_s, tree_bytes(path), None, str(error))
        return FoundObject(found, path, age_s, manifest.size_bytes, frozenset(map(ObjectId, manifest.uses)))
    return None


def _refs(ports: StorePorts) -> tuple[dict[ObjectId, tuple[str, ...]], tuple[str, ...]]:
    book, bad = Refs(ports.paths, ports.disk), []
    named: defaultdict[ObjectId, list[str]] = defaultdict(list)
    for name, tag in book.pairs():
        try:
            ref = book.read(name, tag)
        except NotPublished:
            continue
        except (Corrupt, Refused) as error:
            bad.append(str(error))
            continue
        named[ref.object].append(str(ref))
    return {target: tuple(names) for target, names in named.items()}, tuple(bad)


def _aside(path: Path, now_s: float) -> FoundAside:
    with telling("look at", path):
        try:
            age_s = now_s - path.lstat().st_mtime
        except FileNotFoundError:
            age_s = 0.0  # somebody else removed it
    text = path.name.partition(".")[0]
    try:
        found = object_id(text)
    except Refused:
        return FoundAside(None, path, age_s, tree_bytes(path))
    try:
        uses = frozenset(map(ObjectId, read_manifest(path, found).uses))
    except (NotPublished, Corrupt, Refused):
        return FoundAside(found, path, age_s, tree_bytes(path), None)
    return FoundAside(found, path, age_s, tree_bytes(path), uses)


def _newest_s(path: Path) -> float:
    """When something in a directory changed last."""
    return max((one.st_mtime for _, one in _tree(path)), default=0.0)


def _tree(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """A file, or a directory with all in it; links are not followed, and what goes meanwhile is left out."""
    with suppress(FileNotFoundError):
        yield path, path.lstat()
        if is_real_directory(path):
            for name in os.listdir(path):
                yield from _tree(path / name)


def _listed(folder: Path, *, hidden: bool = False) -> list[Path]:
    with telling("list", folder), suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder / name for name in os.listdir(folder) if hidden or not name.startswith("."))
    return []
