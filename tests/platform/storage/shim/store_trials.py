"""Whole operations on a store, each beside something older that must outlive whatever goes wrong.

A trial has a place of its own, ``store/`` below it, for an import also ``source/``. What is there before is made once
and copied, since making it durable again and again would take most of the time.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.storage.coordination import flight_machine
from ebbtide.storage.coordination.single_flight import Terms
from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.object_leases import Leases, SharedLeases
from ebbtide.storage.maintenance.scrub import damage_of
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.models.importer import model_import, shard_writer
from ebbtide.storage.models.importer.import_terms import ImportTerms
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.sources import source_patience
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.objects import staging
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.platform.storage.models.made import make_checkpoint, weights
from tests.platform.storage.stores import CHUNK, ROOMY, LocalLeases, publish_model, store_at, tensors

MODEL, FILE = "org/model", "model.safetensors"
PACE = Pace(beat_s=0.01, stale_after_s=5.0, answer_s=10.0)  # a claim that failed is tried again after a beat
BACKOFF_S = 0.02  # production waits for minutes, until a server has failed over


class Trial:
    """One operation at a place."""

    def __init__(self, place: Path, *, shared_leases: bool = False) -> None:
        """``shared_leases``: with files that beat, as other processes see them."""
        self.place, self.root = place, place / "store"
        self.transport = PosixTransport(BufferPool(4, CHUNK), threads=2)
        shared = SharedLeases(self.root / "leases", who="the trial", pace=PACE)
        self._leases: Leases = shared if shared_leases else LocalLeases()

    @staticmethod
    def prepare(place: Path) -> None:
        """Make what is there before."""
        store = store_at(place / "store")
        publish_model(store)
        publish_model(store, seed=1, tag="other")

    def act(self) -> None:
        """The operation, from the opening of the store on."""
        raise NotImplementedError

    def check(self, *, done: bool) -> bool:
        """All that is there is whole, and the older things are among it; ``done``: what `act` makes is there too.

        Returns:
            Whether it is.
        """
        store = store_at(self.root)
        assert seed_of(store, "other", [1]) == 1
        for one in store.list_objects():
            assert (found := damage_of(store.ports, one, deep=True)) == [], f"a damaged object is committed: {found}"
        return done

    def heal(self, template: Path) -> None:
        """Undo what a fault did to files that the operation only reads."""

    def left(self) -> list[str]:
        """What is half written."""
        return sorted(path.name for path in (self.root / "incoming").iterdir())

    def store(self) -> ObjectStore:
        """As a process opens it."""
        return ObjectStore.at(self.root, self.transport, leases=self._leases, budget=ROOMY)


def seed_of(store: ObjectStore, tag: str, seeds: list[int]) -> int:
    """Which of the models a ref leads to, to the last bit."""
    with store.open_ref(MODEL, tag) as found:
        arrays, config = found.read_arrays(FILE), found.read_bytes("config.json")
    assert config == b'{"layers": 1}', "bytes"
    right = [seed for seed in seeds if equal(arrays, tensors(seed))]
    assert right, "bytes"
    return right[0]


def equal(found: Any, wanted: dict[str, np.ndarray]) -> bool:
    """Whether arrays are the same, by name."""
    return found.keys() == wanted.keys() and all(found[one].tobytes() == wanted[one].tobytes() for one in wanted)


class Publish(Trial):
    """A new model takes over the ref of an older one."""

    def act(self) -> None:
        publish_model(self.store(), seed=7)

    def check(self, *, done: bool) -> bool:
        super().check(done=done)
        return seed_of(store_at(self.root), "latest", [7] if done else [0, 7]) == 7


class MoveRef(Trial):
    """A ref that leads to one object is made to lead to another."""

    def __init__(self, place: Path, *, shared_leases: bool = False) -> None:
        super().__init__(place, shared_leases=shared_leases)
        self._target = store_at(self.root).refs.read(MODEL, "other").object

    def act(self) -> None:
        self.store().refs.write(MODEL, "latest", self._target)

    def check(self, *, done: bool) -> bool:
        super().check(done=done)
        return seed_of(store_at(self.root), "latest", [1] if done else [0, 1]) == 1


class Load(Trial):
    """All of a model is read by its ref, checked, and not from the page cache."""

    def __init__(self, place: Path, *, shared_leases: bool = False) -> None:
        super().__init__(place, shared_leases=shared_leases)
        evict(self.root)

    def act(self) -> None:
        assert seed_of(self.store(), "latest", [0]) == 0

    def check(self, *, done: bool) -> bool:
        """Nothing was to change."""
        return done

    def heal(self, template: Path) -> None:
        lengthen(self.place, template)


class Import(Trial):
    """A model comes from a local directory."""

    @staticmethod
    def prepare(place: Path) -> None:
        Trial.prepare(place)
        make_checkpoint(place / "source", shards=1, layers=2)

    def act(self) -> None:
        terms = ImportTerms(chunk_bytes=CHUNK, stretch_bytes=4 * CHUNK, pace=PACE, deadline_s=60)
        import_model(self.store(), LocalSource(self.place / "source"), ("org/new", "latest"), terms=terms)

    def heal(self, template: Path) -> None:
        lengthen(self.place / "source", template / "source")

    def check(self, *, done: bool) -> bool:
        super().check(done=done)
        store = store_at(self.root)
        assert seed_of(store, "latest", [0]) == 0
        if is_there := done or bool(store.refs.tags("org/new")):
            with store.open_ref("org/new", "latest") as found:
                assert equal(found.read_arrays(FILE), weights(layers=2)), "bytes"
        return is_there


TRIALS: dict[str, type[Trial]] = {"publish": Publish, "import": Import, "move ref": MoveRef, "load": Load}


def lengthen(place: Path, template: Path) -> None:
    """Files that were truncated are whole again."""
    for path in template.rglob("*"):
        here = place / path.relative_to(template)
        if path.is_file() and here.stat().st_size < path.stat().st_size:
            shutil.copy(path, here)


def evict(folder: Path) -> None:
    """Have the large files there out of the page cache."""
    for path in folder.rglob("*.safetensors"):
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """How long transfers may take, where callers leave that to the store."""
    names = ((staging, "LEAST_DEADLINE_S"), (shard_writer, "LEAST_PATIENCE_S"), (source_patience, "PATIENCE_S"))
    before = [getattr(module, name) for module, name in names]
    for module, name in names:
        setattr(module, name, seconds)
    try:
        yield
    finally:
        for (module, name), value in zip(names, before, strict=True):
            setattr(module, name, value)


def hurry() -> None:
    """Let imports that failed try again at once, and once only."""
    vars(flight_machine)["backoff_s"] = lambda failures: BACKOFF_S
    vars(model_import)["Terms"] = partial(Terms, tries=2)
