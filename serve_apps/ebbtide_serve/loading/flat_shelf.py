"""Finding flat forms in the store, and giving up those whose model has gone."""

from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.storage.errors import NotPublished
from ebbtide.storage.manifest import Kind
from ebbtide.storage.object_store import ObjectStore
from ebbtide.storage.stored_object import StoredObject
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat_key import PREFIX, FlatKey, model_of


@contextmanager
def flat_form(store: ObjectStore, key: FlatKey, tag: str) -> Iterator[StoredObject]:
    """Open the flat form for a key and a rank's tag.

    Raises:
        FlatUnusable: there is none, or what is there is of another key.
        Corrupt, TransferFailed: it cannot be opened.
    """
    try:
        found = store.open_ref(key.ref_name, tag)
    except NotPublished as error:
        raise FlatUnusable(f"there is no flat form of it yet ({key.ref_name}:{tag})") from error
    with found:
        manifest = found.manifest
        if manifest.kind is not Kind.FLAT or dict(manifest.key) != key.as_manifest_key():
            raise FlatUnusable(f"object {found.id} under {key.ref_name}:{tag} is of another key")
        yield found


def prune(store: ObjectStore) -> list[str]:
    """Delete the refs of flat forms whose model is not in the store any more; the collector gets the objects.

    Returns:
        The refs that went.

    Raises:
        StorageError: the store cannot be looked at.
    """
    gone = []
    for name, tag in store.refs.pairs(PREFIX):
        model = model_of(name)
        if model is not None and not store.paths.object(model).is_dir() and store.refs.delete(name, tag):
            gone.append(f"{name}:{tag}")
    return gone
