"""Finding flat forms in the store.

The tags of the ranks are written one after the other, and whoever does that may be killed in between. A rank that finds
none of its own looks at the objects of the others, and writes what is missing.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ebbtide.storage.errors import NotPublished, StorageError
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.flat_file import layout_in
from ebbtide_serve.loading.flat.flat_key import FlatKey


@contextmanager
def flat_form(store: ObjectStore, key: FlatKey, rank: int, layout_digest: str) -> Iterator[StoredObject]:
    """Open the flat form for a key and a rank's layout.

    Raises:
        FlatUnusable: there is none, or what is there is of another key.
        Corrupt, TransferFailed: it cannot be opened.
    """
    tag = key.tag(rank, layout_digest)
    try:
        found = store.open_ref(key.ref_name, tag)
    except NotPublished as error:
        other = _under_another_tag(store, key, rank, layout_digest)
        if other is None:
            raise FlatUnusable(f"there is no flat form of it yet ({key.ref_name}:{tag})") from error
        found = other
        with suppress(StorageError):  # it only spares the next start the search
            store.refs.write(key.ref_name, tag, found.id)
    with found:
        if not _is_of(found, key):
            raise FlatUnusable(f"object {found.id} under {key.ref_name}:{tag} is of another key")
        yield found


def _under_another_tag(store: ObjectStore, key: FlatKey, rank: int, layout_digest: str) -> StoredObject | None:
    with suppress(StorageError):
        for tag in store.refs.tags(key.ref_name):
            with suppress(StorageError), ExitStack() as undo:
                found = undo.enter_context(store.open_ref(key.ref_name, tag))
                if _is_of(found, key) and layout_in(found.header(key.file_name(rank))) == layout_digest:
                    undo.pop_all()
                    return found
    return None


def _is_of(found: StoredObject, key: FlatKey) -> bool:
    return found.manifest.kind is Kind.FLAT and dict(found.manifest.key) == key.as_manifest_key()
