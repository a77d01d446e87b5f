"""What is done for a replica before its engine is made and after it serves: model, caches, what the next one needs.

Before: the model is found in the pool's store (a directory is brought in at first use), leased as long as the replica
lives, and the caches of compiled code are restored into a directory that no other replica writes to. After: caches that
are new are published, and the flat form of the weights.

A model that is named in the store must be had from there. Everything else may fail: a directory that cannot be brought
in, or only without some of its weights, is served as it is, and without caches the engine compiles; the reasons are
logged. A store that does not answer counts as none. One that cannot be written is read without a lease.

Not guaranteed: an end, where the store answers at first and hangs in the middle of an import.

Imports neither torch nor vLLM, since vLLM reads the environment that is made here when it is imported.
"""

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ebbtide.config.sections.scalars import is_stored_model
from ebbtide.storage.errors import Refused, StorageError
from ebbtide.storage.files.shared_files import Bounded
from ebbtide.storage.models.registry.model_resolution import StoredModel, resolve
from ebbtide.storage.models.sources.excluded_weights import left_behind
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.shard_consistency import printable
from ebbtide.storage.models.sources.source_patience import within_patience
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.remote.urls import local_path
from ebbtide.system.modes import Place, took
from ebbtide_serve.compile_cache import trials
from ebbtide_serve.compile_cache.cache_dir import cache_environment, own_directory, remove_left_over
from ebbtide_serve.compile_cache.cache_store import Restored, publish, restore
from ebbtide_serve.compile_cache.fingerprint import Fingerprint, fingerprint
from ebbtide_serve.compile_cache.machine import machine_facts, versions
from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.engine.start_report import TellsOfItsStart
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.loading.settings import LoadSettings
from ebbtide_serve.process.background import nicely
from ebbtide_serve.process.pool_store import PoolStore, open_pool_store

_log = logging.getLogger(__name__)

STORE = "store"  # below the pool's shared directory
CACHES = "replicas"  # below the node's cache directory
FORMATS = {"flat": "ebbtide_flat", "checkpoint": "ebbtide"}  # by `load.weights` of the endpoint
LOOK_UP_S = 60.0  # for refs, manifest, lease and indexes of one model
_SHOWN = 5  # names in one message
_BUFFERS = 4  # for bringing in a directory, and for caches; weights are read by the engine's processes


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`load` of the endpoint, see ``endpoint_section.LoadSection``, and how many ranks of the pool may load at once."""

    weights: Literal["flat", "checkpoint", "engine"] = "flat"
    caches: bool = True
    loaders: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a replica is to serve.

    Attributes:
        name: of the endpoint.
        model: a directory, or ``name:tag`` in the store.
        args: of the engine.
        ranks: of its tensor parallelism.
        shared_dir: of the pool.
        cache_dir: of the node.
    """

    name: str
    model: str
    args: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    options: LoadOptions = LoadOptions()
    shared_dir: Path
    cache_dir: Path


class Preparation:
    """Of one replica; its methods are called one after the other, on one event loop."""

    def __init__(self, wish: Wish, *, pid: int, started: int, environment: Mapping[str, str]) -> None:
        """``pid`` and ``started`` are of this process, ``environment`` what its engine will have in it besides."""
        self._wish, self._environment = wish, dict(environment)
        self._caches = own_directory(wish.cache_dir / CACHES, pid, started)
        self._pool: PoolStore | None = None
        self._model: StoredModel | None = None
        self._fingerprint: Fingerprint | None = None
        self._restored = Restored(None, why="it was not asked for")
        self._why_own = "load.weights is engine" if wish.options.weights == "engine" else ""

    @property
    def name(self) -> str:
        """Of the endpoint."""
        return self._wish.name

    @property
    def _store(self) -> ObjectStore | None:
        return self._pool.store if self._pool is not None else None

    async def prepare(self, done: Callable[[str], None]) -> None:
        """Find the model, restore the caches, and set the environment of this process.

        Args:
            done: called with ``model`` and ``caches`` when they are there.

        Raises:
            EngineFailed: a model that is named in the store cannot be had from there.
        """
        await asyncio.to_thread(self._find_model)
        done("model")
        if self._wish.options.caches:
            await asyncio.to_thread(self._restore_caches)
            self._environment |= cache_environment(self._caches)
            done("caches")
        os.environ.update(self._environment)

    def settings(self) -> EngineSettings:
        """What the engine is started with."""
        wish, model = self._wish, self._model
        if model is None or self._store is None:
            return EngineSettings(wish.name, wish.model, wish.args, why_own=self._why_own)
        way = FORMATS.get(wish.options.weights, "")
        capture = wish.options.weights == "flat"
        weights = LoadSettings(self._store.paths.root, model.stored.id, capture, wish.options.loaders) if way else None
        return EngineSettings(
            wish.name, str(model.directory), wish.args, load_format=way, weights=weights, why_own=self._why_own
        )

    async def settle(self, engine: Engine) -> None:
        """Publish what is new, once the engine serves; never fails."""
        trials.mark_passed(self._caches)
        if self._store is None:
            return
        if self._fingerprint is not None:
            try:
                took(Place.CACHES, await nicely(self._publish_caches, "caches"))
            except Exception:  # noqa: BLE001 - outermost: what the engine holds must be given back all the same
                _log.exception("the caches of %s are not kept", self._wish.name)
        if isinstance(engine, TellsOfItsStart):
            took(Place.FLAT_FORM, await engine.settle(self._store))

    def failed(self) -> None:
        """The engine did not start: the next one on this node shall do without the caches that this one was given."""
        trials.mark_failed(self._caches)

    def close(self) -> None:
        """Give up the model's lease, and remove the caches; what of them is in use stays until its process ends."""
        if self._model is not None:
            self._model.close()
            self._model = None
        trials.mark_passed(self._caches)
        shutil.rmtree(self._caches, ignore_errors=True)

    def _opened(self) -> PoolStore:
        """The pool's store. Raises TransferTimeout if it does not answer, where its own calls would wait for ever."""
        root, who = self._wish.shared_dir / STORE, f"endpoint {self._wish.name}"
        return open_pool_store(root, warn=_log.warning, buffers=_BUFFERS, who=who, make=True)

    def _find_model(self) -> None:
        wish = self._wish
        is_named = is_stored_model(Path(wish.model))
        is_wanted = wish.options.weights != "engine" or is_named
        if not is_wanted and not wish.options.caches:
            return
        try:
            self._pool = self._opened()
            store = self._pool.store
            if is_named:
                self._model = Bounded()("open", wish.model, LOOK_UP_S, lambda: resolve(store, wish.model))
            elif is_wanted:
                self._model = self._brought_in(store)
        except (StorageError, OSError) as error:
            if is_named:
                raise EngineFailed(f"the model {wish.model} of endpoint {wish.name} cannot be had: {error}") from error
            why = f"the directory {wish.model} is read as it is: {error}"
            _log.warning("%s: %s", wish.name, why)
            self._why_own = self._why_own or why

    def _brought_in(self, store: ObjectStore) -> StoredModel | None:
        wish = self._wish
        if names := _left_behind(wish.model):
            left = f"{', '.join(map(printable, names[:_SHOWN]))}{' and others' if len(names) > _SHOWN else ''}"
            raise Refused(f"the store does not take {left}, which the model may need")
        found = resolve(store, wish.model)
        for note in found.imported.notes if found.imported is not None else ():
            _log.warning("%s: %s", wish.name, note)
        return found

    def _restore_caches(self) -> None:
        wish, parent = self._wish, self._caches.parent
        try:
            remove_left_over(parent)
            self._fingerprint = self._named()
            if self._store is None or self._fingerprint is None:
                self._caches.mkdir(mode=0o700, parents=True)
                return
            self._restored = restore(self._store, self._fingerprint, self._caches, suspects=trials.suspects(parent))
            if self._restored.object is not None:
                trials.begin(self._caches, self._restored.object)
        except OSError as error:
            raise EngineFailed(f"no directory for caches can be made in {wish.cache_dir}: {error}") from error
        what = f"{self._restored.files} files, {self._restored.bytes / 1e6:.1f} MB"
        _log.info("caches of %s: %s", wish.name, self._restored.why or what)
        took(Place.CACHES, f"restored: {what}" if self._restored.object is not None else f"none: {self._restored.why}")

    def _named(self) -> Fingerprint | None:
        """What caches are found by; None if none can be kept."""
        wish = self._wish
        if self._store is None:
            return None
        try:
            self._opened()  # to see whether it still answers
            return fingerprint(
                machine=machine_facts(),
                versions=versions(),
                model=self._model.stored.id if self._model is not None else _config_digest(Path(wish.model)),
                tensor_parallel=wish.ranks,
                args=wish.args,
                environ=dict(os.environ) | self._environment,
            )
        except (StorageError, OSError, TypeError, ValueError) as error:  # of odd arguments, which JSON cannot sort
            _log.warning("caches of %s: none are kept: %s", wish.name, error)
            return None

    def _publish_caches(self) -> str:
        assert self._pool is not None, "checked by who calls"
        assert self._fingerprint is not None, "checked by who calls"
        found, why = publish(self._pool.background, self._fingerprint, self._caches, self._restored)
        if self._restored.suspect is not None:
            trials.forget(self._caches.parent, self._restored.suspect)
        return why or f"published as object {found}"


def _left_behind(model: str) -> list[str]:
    """Weights that an import would not take of a directory; URLs cannot be read as they are."""
    path = local_path(model)
    if path is None or not path.is_dir():
        return []
    source = LocalSource(path)
    return within_patience(source, "look through", lambda: left_behind(source.listing(), source.where))


def _config_digest(model: Path) -> str:
    """What names a model that is in no store, for the sake of its compiled code: its configuration."""
    return hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
