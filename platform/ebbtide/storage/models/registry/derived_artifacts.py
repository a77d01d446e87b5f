"""Names of what was made of models and can be made again: their flat forms, and the caches of compilers.

Nobody removes such a name by hand, and a name keeps its object. So they are given up here: a flat form when its model
has no other name, nobody holds it and its grace is over, a cache when nobody used it for long. The collector gets the
objects. What belongs to a model that has a name stays, whoever uses it.

Not guaranteed: that a flat form is found by an engine that begins to hold its model just then; it takes the checkpoint.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.storage.errors import Corrupt, NotPublished, Refused
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.maintenance.garbage_collection import filesystem_now_s
from ebbtide.storage.maintenance.garbage_plan import Grace, Survey
from ebbtide.storage.models.registry.derived_names import ARTEFACT, model_of
from ebbtide.storage.names import COMMIT, ObjectId, RefName, Tag
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.refs import Misplaced

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class UnusedName:
    """A name that nobody needs any more, and why not."""

    name: RefName
    tag: Tag
    why: str

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"


def mark_used(store: ObjectStore, name: RefName, tag: Tag) -> None:
    """Say that a cache was used just now, by the age of its name.

    Raises:
        StorageError: the filesystem refuses.
    """
    store.ports.disk.touch(store.paths.ref(name, tag))


def unused_names(store: ObjectStore, grace: Grace) -> list[UnusedName]:
    """Which names nobody needs any more.

    Raises:
        StorageError: the store cannot be looked at.
    """
    pairs = store.refs.pairs()
    named = _targets(store, [pair for pair in pairs if model_of(pair[0]) is None])
    present = store.ports.leases.present()
    now_s = filesystem_now_s(store.ports)
    found = []
    for name, tag in pairs:
        model = model_of(name)
        if model is not None:
            if named is None or model in named or of_object(model) in present:
                continue
            age_s = _age_s(store.paths.object(model) / COMMIT, now_s)
            if age_s is None or age_s > grace.object_s:
                found.append(UnusedName(name, tag, "its model has no other name, and no process holds it"))
        elif name.startswith(ARTEFACT):
            age_s = _age_s(store.paths.ref(name, tag), now_s)
            if age_s is not None and age_s > grace.unused_s:
                found.append(UnusedName(name, tag, f"a cache that was not used for {age_s / DAY_S:.0f} days"))
    return found


def delete_unused(store: ObjectStore, grace: Grace) -> list[UnusedName]:
    """Delete names that nobody needs any more; for whoever collects garbage, before that.

    Returns:
        The names that went.

    Raises:
        StorageError: the store cannot be looked at, or a name not be deleted.
    """
    # Their objects go with their models: whoever looked up such a name a moment ago can do without.
    return [name for name in unused_names(store, grace) if store.refs.delete(name.name, name.tag, grace=False)]


def without(found: Survey, gone: Iterable[UnusedName]) -> Survey:
    """What the survey would be if these names were gone."""
    texts = {str(one) for one in gone}
    left = {target: tuple(name for name in names if name not in texts) for target, names in found.refs.items()}
    return replace(found, refs={target: names for target, names in left.items() if names})


def _targets(store: ObjectStore, pairs: Collection[tuple[RefName, Tag]]) -> frozenset[ObjectId] | None:
    """What they name; None if one cannot be read, so that nobody knows."""
    found = set()
    for name, tag in pairs:
        with suppress(NotPublished):  # deleted meanwhile
            try:
                found.add(store.refs.read(name, tag).object)
            except Misplaced as error:
                if error.names is None:
                    return None
                found.add(error.names)
            except (Corrupt, Refused):
                return None
    return frozenset(found)


def _age_s(path: Path, now_s: float) -> float | None:
    """None if it is gone."""
    with telling("look at", path):
        try:
            return now_s - path.stat().st_mtime
        except FileNotFoundError:
            return None
