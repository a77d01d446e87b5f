"""Finding flat forms in the store."""

from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.storage.errors import NotPublished
from ebbtide.storage.manifest import Kind
from ebbtide.storage.object_store import ObjectStore
from ebbtide.storage.stored_object import StoredObject
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat_key import FlatKey


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
