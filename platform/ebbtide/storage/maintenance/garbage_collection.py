"""Looking at a store and doing what ``garbage_plan`` planned.

`survey` looks, `plan` decides, `collect` acts; a round of all three trashes what nobody needs, and a later round
removes it. A round may be cut off anywhere, and several may run at once. Ages are taken by the filesystem's own clock,
so that a node whose clock is wrong condemns nothing.

Not guaranteed: that a round is quick. It waits for holders that are silent until they count as dead, a minute. And that
nobody misses for a moment what is needed again while it is moved; nor what a publisher sees only in its cache of names
(NFS, up to 60 s), which a later round restores.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError
from ebbtide.storage.files.durable_files import is_real_directory, telling
from ebbtide.storage.leases.lease_subjects import of_object, of_work
from ebbtide.storage.maintenance.garbage_plan import (
    Fate,
    FoundAside,
    FoundObject,
    FoundWork,
    Grace,
    Survey,
    Verdict,
    plan,
)
from ebbtide.storage.names import COMMIT, Attempt, ObjectId, object_id
from ebbtide.storage.objects.object_contents import read_manifest
from ebbtide.storage.objects.refs import Misplaced, Refs
from ebbtide.storage.objects.store_entries import object_directories, set_aside, temporaries, work_directories
from ebbtide.storage.objects.store_ports import StorePorts

BLOCK_BYTES = 512  # of st_blocks, whatever the filesystem's own are: stat(2)


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
    # What is none of the store's own is not removed.
    trash = tuple(_aside(path, now_s) for path in set_aside(paths.trash))
    quarantine = tuple(_aside(path, now_s) for path in set_aside(paths.quarantine))
    work = tuple(
        FoundWork(Attempt(path.name), path, now_s - _newest_s(path), tree_bytes(path))
        for path in work_directories(paths)
    )
    objects = tuple(one for path in object_directories(paths) if (one := _object(path, now_s)) is not None)
    cut_off = tuple(_aside(path, now_s) for path in temporaries(paths))
    refs, bad_refs = _refs(ports)
    living = ports.leases.living() if judge else ports.leases.present()
    return Survey(objects, work, trash, quarantine, refs, bad_refs, living, cut_off)


def collect(ports: StorePorts, verdicts: Iterable[Verdict], grace: Grace) -> Collected:
    """Do what was planned; what fails is told in the result, and the rest is done.

    Between look and deed somebody may publish, name or open an object. So all is looked at again before the first
    deed, each object just before it is moved, and all once more after the moves, when nobody finds it any more: what
    is needed then comes back at once, and counts as missed.

    Args:
        ports: of the store.
        verdicts: what was planned.
        grace: by which.

    Raises:
        TransferFailed: the store cannot be looked at; nothing was done.
    """
    result, moved = Collected(), dict[Path, Verdict]()
    wanted = [verdict for verdict in verdicts if verdict.fate is not Fate.KEEP]
    if not wanted:
        return result
    asked_s = filesystem_now_s(ports)
    fates = {one.path: one.fate for one in plan(survey(ports, judge=False), grace)}
    for verdict in wanted:
        try:
            done = (
                fates.get(verdict.path) is verdict.fate  # guard: all is looked at again before the first deed
                and _do(ports, verdict, asked_s, moved)
            )
        except StorageError as error:  # guard: what fails in a round is told and the rest is done
            result.failed.append((verdict, error))
            continue
        (result.done if done else result.missed).append(verdict)
    if moved:  # guard: what came to be needed during the moves comes back
        _bring_back(ports, moved, asked_s, grace, result)
    return result


def filesystem_now_s(ports: StorePorts) -> float:
    """The time that the filesystem gives to a change made now: its server's clock, not this node's.

    No file is made for that, since a quota that is full would refuse it to the very collector that makes room.
    """
    path = ports.paths.trash
    ports.disk.touch(path)  # guard: ages are taken by the filesystem's clock
    with telling("look at", path):
        return path.stat().st_mtime


def tree_bytes(path: Path, *, but: str = "") -> int:
    """The length of all files below a directory, or of one file; those called ``but`` are left out."""
    return sum(one.st_size for place, one in _tree(path) if not stat.S_ISDIR(one.st_mode) and place.name != but)


def written_bytes(path: Path, *, but: str = "") -> int:
    """Like `tree_bytes`, but of what is written: a file's holes do not count."""
    return sum(
        min(one.st_size, one.st_blocks * BLOCK_BYTES)
        for place, one in _tree(path)
        if not stat.S_ISDIR(one.st_mode) and place.name != but
    )


def _do(ports: StorePorts, verdict: Verdict, asked_s: float, moved: dict[Path, Verdict]) -> bool:
    match verdict.fate:
        case Fate.TRASH:
            return _trash(ports, verdict, asked_s, moved)
        case Fate.RESTORE:
            assert verdict.object is not None
            return _restore(ports, verdict.path, verdict.object)
        case Fate.REMOVE:
            ports.disk.remove_tree(verdict.path)
            return True
        case Fate.KEEP:
            return False


def _trash(ports: StorePorts, verdict: Verdict, asked_s: float, moved: dict[Path, Verdict]) -> bool:
    name = verdict.object or of_work(Attempt(verdict.path.name))
    subject = of_work(Attempt(verdict.path.name)) if verdict.object is None else of_object(verdict.object)
    if (
        subject in ports.leases.present()  # guard: what is held just before its move stays
        # guard: what is published or named just before its move stays
        or (_committed_s(verdict.path) or 0.0) > asked_s
    ):
        return False  # held, or published or named again, a moment ago
    if is_real_directory(verdict.path):  # guard: the time in the trash counts from the move
        ports.disk.touch(verdict.path)  # its age in the trash counts from now
    aside = ports.paths.aside(ports.paths.trash, name)
    if not ports.disk.move(verdict.path, aside):
        return False
    moved[aside] = verdict
    return True


def _bring_back(
    ports: StorePorts, moved: Mapping[Path, Verdict], asked_s: float, grace: Grace, result: Collected
) -> None:
    """Move back what somebody came to need before it was moved; all, if that cannot be told."""

    def back(aside: Path, found: Verdict) -> None:
        try:
            done = found.object is not None and _restore(ports, aside, found.object)
        except StorageError as error:
            result.failed.append((found, error))
            return
        if done:
            result.done.append(found)
            if (before := moved.get(aside)) in result.done:
                result.done.remove(before)
                result.missed.append(before)

    try:
        for aside, verdict in moved.items():
            # guard: what was named during the moves comes back at once
            if verdict.object is not None and (_committed_s(aside) or 0.0) > asked_s:
                why = "published or named again while it was moved"
                back(aside, replace(verdict, path=aside, fate=Fate.RESTORE, why=why))
        for verdict in plan(survey(ports, judge=False), grace):
            if verdict.fate is Fate.RESTORE:
                back(verdict.path, verdict)
    except StorageError as error:  # guard: what cannot be asked after the moves is put back
        for aside, verdict in moved.items():
            if verdict in result.done:
                result.done.remove(verdict)
                result.failed.append((verdict, error))
                with suppress(StorageError):  # the first error is the one to tell; a later round restores it
                    ports.disk.move(aside, verdict.path)


def _restore(ports: StorePorts, source: Path, wanted: ObjectId) -> bool:
    """Move an object back; what stands in its place and cannot be read goes to quarantine first."""
    target = ports.paths.object(wanted)
    if ports.disk.move(source, target):
        return True
    try:
        read_manifest(target, wanted)
    except (NotPublished, Corrupt, Refused):
        # guard: a husk goes to quarantine before a good copy takes its place
        ports.disk.move(target, ports.paths.aside(ports.paths.quarantine, wanted))
        return ports.disk.move(source, target)
    return False


def _object(path: Path, now_s: float) -> FoundObject | None:
    """What is to be known of an object; None if it went meanwhile."""
    found = ObjectId(path.name)
    with telling("look at", path), suppress(FileNotFoundError):
        committed_s = _committed_s(path)
        age_s = now_s - (path.stat().st_mtime if committed_s is None else committed_s)
        try:
            manifest = read_manifest(path, found)
        except (NotPublished, Corrupt, Refused) as error:
            return FoundObject(found, path, age_s, tree_bytes(path), None, str(error))
        return FoundObject(found, path, age_s, manifest.size_bytes, frozenset(map(ObjectId, manifest.uses)))
    return None


def _committed_s(path: Path) -> float | None:
    """When an object was published, or got or lost a name; None if it is none.

    COMMIT is opened for that: an NFS client asks the server then, and shows a time that may be a minute old otherwise.
    """
    with telling("look at", path):
        try:
            with (path / COMMIT).open("rb") as file:
                return os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None


def _refs(ports: StorePorts) -> tuple[dict[ObjectId, tuple[str, ...]], tuple[str, ...]]:
    book, bad = Refs(ports.paths, ports.disk), []
    named: defaultdict[ObjectId, list[str]] = defaultdict(list)
    for name, tag in book.pairs():
        try:
            ref = book.read(name, tag)
        except NotPublished:
            continue
        except Misplaced as error:
            if error.names is not None:  # guard: what a copy of a ref names stays
                named[error.names].append(f"{name}:{tag}, a copy of another name")
            else:
                bad.append(str(error))
            continue
        except (Corrupt, Refused) as error:
            bad.append(str(error))  # guard: a bad ref is told to the plan
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
        if is_real_directory(path):  # guard: links in the store are not followed
            for name in os.listdir(path):
                yield from _tree(path / name)
