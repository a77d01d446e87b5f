"""Names of what was made of models and can be made again: their flat forms, and the caches of compilers.

Nobody removes such a name by hand, and a name keeps its object. So they are given up here: a flat form when its model
has no other name and nobody holds it, a cache when nobody used it for long. The collector gets the objects.
"""

from ebbtide.storage.collecting import filesystem_now_s
from ebbtide.storage.durable import telling
from ebbtide.storage.errors import NotPublished
from ebbtide.storage.leases import of_object
from ebbtide.storage.names import ObjectId, RefName, Tag
from ebbtide.storage.object_store import ObjectStore

FLAT = "flat/"  # flat/<model>/<digest of the rest of the key>, a tag for each rank
ARTEFACT = "artefact/"  # artefact/<fingerprint>
UNUSED_S = 60 * 86400.0  # a quarterly job's cache may go: it costs minutes, once


def flat_name(model: ObjectId, digest: str) -> str:
    """What a flat form is called."""
    return f"{FLAT}{model}/{digest}"


def model_of(name: str) -> ObjectId | None:
    """The model that a flat form was made of, by its name; None for any other name."""
    model, _, digest = name.removeprefix(FLAT).partition("/")
    return ObjectId(model) if name.startswith(FLAT) and digest else None


def mark_used(store: ObjectStore, name: RefName, tag: Tag) -> None:
    """Say that a cache was used just now, by the age of its name.

    Raises:
        StorageError: the filesystem refuses.
    """
    store.ports.disk.touch(store.paths.ref(name, tag))


def give_up_derived(store: ObjectStore, *, unused_s: float = UNUSED_S) -> list[str]:
    """Delete names that nobody needs any more; for whoever collects garbage, before that.

    Args:
        unused_s: how long a cache may lie unused.

    Returns:
        The names that went, with their tags.

    Raises:
        StorageError: the store cannot be looked at.
    """
    pairs = store.refs.pairs()
    present = store.ports.leases.present()
    named = {_target(store, name, tag) for name, tag in pairs if not name.startswith(FLAT)}
    now_s = filesystem_now_s(store.ports)
    gone = []
    for name, tag in pairs:
        model = model_of(name)
        if model is not None:
            goes = model not in named and of_object(model) not in present
        else:
            goes = name.startswith(ARTEFACT) and _age_s(store, name, tag, now_s) > unused_s
        if goes and store.refs.delete(name, tag):
            gone.append(f"{name}:{tag}")
    return gone


def _target(store: ObjectStore, name: RefName, tag: Tag) -> ObjectId | None:
    try:
        return store.refs.read(name, tag).object
    except NotPublished:  # deleted meanwhile
        return None


def _age_s(store: ObjectStore, name: RefName, tag: Tag, now_s: float) -> float:
    path = store.paths.ref(name, tag)
    with telling("look at", path):
        try:
            return now_s - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
