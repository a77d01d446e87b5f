"""The models of a store, and who uses them.

Nothing is leased, and no file of weights is opened: what a row says comes from refs, manifests and leases. A ref or an
object that is damaged has a row that says so.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.leases.lease_watch import LeaseObserver
from ebbtide.storage.maintenance.garbage_collection import filesystem_now_s
from ebbtide.storage.names import COMMIT, ObjectId, RefName, Tag
from ebbtide.storage.objects.manifest import Kind, Manifest
from ebbtide.storage.objects.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a model.

    Attributes:
        who: as it calls itself.
        silent_s: since it last gave a sign of life, by the filesystem's clock; it counts as dead some time later.
    """

    who: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One name of a model, or a model without one.

    Attributes:
        name, tag: empty if it has none.
        object: None if the ref is damaged.
        size_bytes: without indexes.
        num_tensors, num_parameters: 0 if nobody knows.
        dtype: the types of its tensors, the largest first.
        at_s: seconds since 1970, by the filesystem's clock: when this name was given; without one, when the object was
            published or lost its last name.
        refs: all of its names.
        holders: processes that hold it.
        flat_forms: forms of it that engines load faster, in words.
        problem: what is wrong with it; empty if nothing is known.
    """

    name: str
    tag: str
    object: ObjectId | None
    size_bytes: int = 0
    num_tensors: int = 0
    num_parameters: int = 0
    dtype: str = ""
    at_s: float = 0.0
    refs: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    flat_forms: tuple[str, ...] = ()
    problem: str = ""


def list_models(store: ObjectStore) -> list[ModelRow]:
    """All models, by name and tag, those without a name last.

    Raises:
        TransferFailed: the store cannot be looked at.
    """
    manifests, problems = _manifests(store)
    refs, bad = _refs(store)
    holders = holders_of_objects(store)
    flat: defaultdict[str, list[str]] = defaultdict(list)
    for manifest in manifests.values():
        if manifest.kind is Kind.FLAT:
            for used in manifest.uses:
                flat[used].append(", ".join(f"{key} {value}" for key, value in sorted(manifest.key.items())))
    named: defaultdict[ObjectId, list[str]] = defaultdict(list)
    for name, tag, target in refs:
        named[target].append(f"{name}:{tag}")

    def row(name: str, tag: str, target: ObjectId, at_s: float) -> ModelRow:
        manifest = manifests.get(target)
        problem = problems.get(target, "") if manifest is not None or target in problems else "its object is gone"
        return ModelRow(
            name,
            tag,
            target,
            manifest.size_bytes if manifest else 0,
            _number(manifest, "tensors"),
            _number(manifest, "parameters"),
            manifest.key.get("dtype", "") if manifest else "",
            at_s,
            tuple(named[target]),
            tuple(holders.get(of_object(target), ())),
            tuple(sorted(flat[target])),
            problem,
        )

    def is_model(target: ObjectId) -> bool:
        return target not in manifests or manifests[target].kind is Kind.MODEL

    rows = [row(name, tag, target, _ref_time(store, name, tag)) for name, tag, target in refs if is_model(target)]
    rows += [ModelRow(name, tag, None, problem=why) for name, tag, why in bad]
    unnamed = sorted(target for target in (manifests.keys() | problems.keys()) if target not in named)
    rows.sort(key=lambda one: (one.name, one.tag))
    return rows + [row("", "", target, _object_time(store, target)) for target in unnamed if is_model(target)]


def holders_of_objects(store: ObjectStore) -> Mapping[str, list[Holder]]:
    """Who holds what, by the subject of the lease; raises TransferFailed if it cannot be told."""
    try:
        now_s = filesystem_now_s(store.ports)
    except StorageError:  # nothing can be written here; this node's clock will do for people
        now_s = time.time()
    found: defaultdict[str, list[Holder]] = defaultdict(list)
    for sighting in LeaseObserver(store.paths.leases).look():
        record = sighting.record
        if record is None or record.released:
            continue
        with suppress(OSError):
            age_s = now_s - (store.paths.leases / str(sighting.file)).stat().st_mtime
            found[sighting.file.name].append(Holder(record.who, max(0.0, age_s)))
    return found


def _manifests(store: ObjectStore) -> tuple[dict[ObjectId, Manifest], dict[ObjectId, str]]:
    good: dict[ObjectId, Manifest] = {}
    problems: dict[ObjectId, str] = {}
    for target in store.list_objects():
        try:
            good[target] = store.manifest(target)
        except NotPublished:
            continue  # removed meanwhile, or the litter of a collector that was cut off
        except (Corrupt, Refused) as error:
            problems[target] = str(error)
    return good, problems


def _refs(store: ObjectStore) -> tuple[list[tuple[str, str, ObjectId]], list[tuple[str, str, str]]]:
    good: list[tuple[str, str, ObjectId]] = []
    bad: list[tuple[str, str, str]] = []
    for name, tag in store.refs.pairs():
        try:
            good.append((name, tag, store.refs.read(name, tag).object))
        except NotPublished:
            continue
        except StorageError as error:
            bad.append((name, tag, str(error)))
    return good, bad


def _number(manifest: Manifest | None, key: str) -> int:
    text = manifest.key.get(key, "") if manifest else ""
    return int(text) if text.isascii() and text.isdigit() else 0


def _ref_time(store: ObjectStore, name: str, tag: str) -> float:
    with suppress(OSError):
        return store.paths.ref(RefName(name), Tag(tag)).stat().st_mtime
    return 0.0


def _object_time(store: ObjectStore, target: ObjectId) -> float:
    with suppress(OSError):
        return (store.paths.object(target) / COMMIT).stat().st_mtime
    return 0.0
