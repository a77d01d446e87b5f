"""From what a user wrote to a source."""

from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.remote_source import RemoteSource
from ebbtide.storage.models.sources.source import Source
from ebbtide.storage.remote.urls import local_path


def open_source(text: str) -> Source:
    """A local directory or any URL that fsspec knows.

    Raises:
        Refused: it names neither; says what to do.
    """
    path = local_path(text)
    return RemoteSource(text) if path is None else LocalSource(path)
