"""From what an endpoint calls its model to a directory that an engine reads, and the object with its weights.

A directory or URL is imported at first use, once however many replicas start at the same time, under a name of its own,
so that it stays as long as nobody removes that name.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ebbtide.storage.errors import NotPublished, Refused
from ebbtide.storage.models.importer.import_progress import Observe
from ebbtide.storage.models.importer.import_terms import Imported, ImportTerms
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.registry.model_names import LATEST, default_name, find
from ebbtide.storage.models.sources.source_factory import open_source
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.remote.urls import is_url

FIRST_USE = "first-use"  # what the names begin with that models get which were imported so


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that may be loaded; a context manager. As long as it is open the model is leased.

    Attributes:
        directory: with config.json, tokenizer and safetensors as any engine reads them. Read only: it is the object.
        stored: the same with hashes, for loaders of ours.
        imported: what an import did, if one was needed or asked for.
    """

    directory: Path
    stored: StoredObject
    imported: Imported | None = None

    def close(self) -> None:
        """Give up the lease."""
        self.stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def resolve(
    store: ObjectStore, wanted: str, *, terms: ImportTerms | None = None, observe: Observe | None = None
) -> StoredModel:
    """Open the model of an endpoint.

    Args:
        store: of the pool.
        wanted: ``name[:tag]``, an object's id, a directory, or a URL. What begins with ``/``, ``./``, ``../`` or ``~``
            is a directory; anything else is one only if no model has that name.
        terms: of an import, should one be needed; its deadline is that of waiting for others.
        observe: told how far an import is.

    Raises:
        NotPublished: there is no such model; tells what there is.
        Refused: it cannot be a model; see `import_model`.
        StorageError: it cannot be opened or imported.
    """
    if is_url(wanted) or wanted.startswith(("/", "./", "../", "~")):
        return _imported(store, wanted, terms, observe)
    try:
        found = find(store, wanted)
        stored = store.open_ref(found.ref.name, found.ref.tag) if found.ref else store.open(found.object)
    except (NotPublished, Refused) as error:
        if Path(wanted).is_dir():
            return _imported(store, wanted, terms, observe)
        hint = "; a new model is brought in by: ebbtide models import SOURCE"
        raise (NotPublished if isinstance(error, NotPublished) else Refused)(f"{error}{hint}") from error
    return StoredModel(store.paths.object(stored.id), stored)


def _imported(store: ObjectStore, wanted: str, terms: ImportTerms | None, observe: Observe | None) -> StoredModel:
    source = open_source(wanted)
    mark = hashlib.sha256(source.where.encode(errors="surrogateescape")).hexdigest()[:8]
    name = f"{FIRST_USE}/{default_name(source.where).replace('/', '-')}-{mark}"
    done = import_model(store, source, (name, LATEST), terms=terms, observe=observe)
    stored = store.open(done.object)
    return StoredModel(store.paths.object(stored.id), stored, done)
