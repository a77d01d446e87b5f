"""Models to import, and what became of them."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ebbtide.storage.models.registry.derived_names import ARTEFACT, flat_name
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.source import Part, Reading, SourceFile
from ebbtide.storage.names import ObjectId, ref_name, tag
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.models.made import make_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


class Tampered:
    """A source whose reads of shards something happens to, before or after; see `Source`."""

    def __init__(self, folder: Path) -> None:
        self.real = LocalSource(folder)
        self.where = self.real.where
        self.reads = 0
        self.before: Callable[[int], object] = lambda number: None
        self.after: Callable[[int, Sequence[Part]], object] = lambda number, parts: None

    def listing(self) -> list[SourceFile]:
        return self.real.listing()

    def look_for(self, names: Iterable[str]) -> list[SourceFile]:
        return self.real.look_for(names)

    def open(self, file: SourceFile) -> Reading:
        reading = self.real.open(file)
        return TamperedReading(self, reading) if file.name.endswith(".safetensors") else reading


class TamperedReading:
    def __init__(self, source: Tampered, real: Reading) -> None:
        self._source, self._real = source, real

    def read(self, parts: Sequence[Part]) -> None:
        if max((len(part.memory) for part in parts), default=0) > 5000:  # a tensor's, no header's
            self._source.reads += 1
            self._source.before(self._source.reads)
            self._real.read(parts)
            self._source.after(self._source.reads, parts)
        else:
            self._real.read(parts)

    def __enter__(self) -> Self:
        self._real.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._real.__exit__(kind, error, trace)


DIGEST = "d1"


def publish_flat(store: ObjectStore, model: ObjectId) -> ObjectId:
    with store.publication(Kind.FLAT, {"model": model}, uses=[model]) as work:
        work.add(work.staging.write_bytes("tp1/rank0.bin", b"flat"))
        return work.publish([(flat_name(model, DIGEST), "tp1-rank0")])


def publish_cache(store: ObjectStore, name: str, age_s: float) -> ObjectId:
    with store.publication(Kind.ARTEFACT, {"of": name}) as work:
        work.add(work.staging.write_bytes("cache", name.encode()))
        found = work.publish([(ARTEFACT + name, "latest")])
    path = store.paths.ref(ref_name(ARTEFACT + name), tag("latest"))
    changed_s = path.stat().st_mtime - age_s
    os.utime(path, (changed_s, changed_s))
    return found
