"""One rank's load: the flat form if there is one, else checkpoint order, and then what the flat form is made of.

Knows no engine: what it needs of one comes as `Ways`. The order of fallbacks and what may follow what is here:

- A flat form that cannot be used costs a line in the log. What was copied of it before an error was checked, so it is
  what ``load_weights`` would have left there, and a load in checkpoint order may follow.
  Buffers are part of the flat form that is made then: loading finds them filled, and would seem to leave them alone.
- Not after a timeout: a copy that was begun may still end, later than the engine's repacking.
- Nothing follows a checkpoint that is damaged: vLLM's own loader would read the same bytes without looking.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import nn

from ebbtide.storage.coordination.load_semaphore import LoadTerms, loading
from ebbtide.storage.errors import Corrupt, StorageError, TransferTimeout
from ebbtide.storage.leases.object_leases import this_process
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.capture import Damage, capture, memory_for_capture
from ebbtide_serve.loading.flat.capture_state import CaptureState
from ebbtide_serve.loading.flat.flat_file import buffers_in, read_flat
from ebbtide_serve.loading.flat.flat_key import FlatKey
from ebbtide_serve.loading.flat.identity import EngineFacts, flat_key
from ebbtide_serve.loading.flat.layout import Layout, layout_of
from ebbtide_serve.loading.flat.lookup import flat_form
from ebbtide_serve.loading.flat.state_watch import filled_buffers, state_of
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.settings import LoadSettings
from ebbtide_serve.loading.start_record import StartRecord

TURNS = "loaders"  # below the store's directory
# After so long it loads whoever else does: the bound is for speed, and half of the 300 s that a start may take is gone.
TURN_S = 150.0
CHECKPOINT, FLAT = "ebbtide", "ebbtide_flat"  # ways to load, and names of load formats

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ways:
    """What an engine gives.

    Attributes:
        facts: of the model on this rank.
        checkpoint: loads in checkpoint order, or in the engine's own way; says which of them it was, and its transfer.
        ranks_here: of this engine on this node.
    """

    facts: EngineFacts
    checkpoint: Callable[[], tuple[str, TransferReport | None]]
    ranks_here: int = 1


@contextmanager
def turn_to_load(settings: LoadSettings, rank: int, *, record: StartRecord, say: Say) -> Iterator[None]:
    """One of the pool's turns to read weights, in whatever way; after ``TURN_S`` it goes anyway."""
    if not settings.loaders:
        yield
        return
    terms = LoadTerms(f"{this_process()}, rank {rank}", settings.loaders, TURN_S)
    said: list[str] = []

    def waits(why: str) -> None:
        if not said:
            say(f"rank {rank} waits for its turn to load: {why}")
        said.append(why)

    with loading(settings.store / TURNS, terms, on_wait=waits) as place:
        if place.why:
            record.reasons.append(f"rank {rank}: {place.why}")
            say(record.reasons[-1])
        yield


class RankLoad:
    """One load of one model; for one thread."""

    def __init__(
        self, settings: LoadSettings, store: ProcessStore, *, record: StartRecord, held: CaptureState, say: Say
    ) -> None:
        """``record`` and ``held`` are changed; ``say`` is for one line a reason."""
        self._settings, self._store, self._record, self._held, self._say = settings, store, record, held, say
        self._damage: Damage | None = None  # that was found in a flat form
        self._touched: frozenset[str] = frozenset()  # buffers that a flat form may have filled before it was given up

    def load(self, model: nn.Module, asked: str, ways: Ways) -> None:
        """Fill the parameters of ``model``.

        Raises:
            StorageError: the checkpoint is damaged or cannot be read.
            Exception: what the engine's own loading raises.
        """
        with turn_to_load(self._settings, ways.facts.rank, record=self._record, say=self._say):
            began_s = time.monotonic()
            used, transfer = "", None
            if asked == FLAT:
                try:
                    used, transfer = FLAT, self._read_flat(model, ways.facts)
                except TransferTimeout:
                    raise
                except (FlatUnusable, StorageError, MemoryError) as error:
                    used = ""
                    self._tell(f"rank {ways.facts.rank} loads in checkpoint order: {error}")
            if not used:
                used, transfer = self._by_checkpoint(model, ways)
            self._record.add(used, transfer, time.monotonic() - began_s)

    def _named(self, model: nn.Module, facts: EngineFacts) -> tuple[FlatKey, Layout]:
        try:
            return flat_key(model, self._settings.model, facts), layout_of(model)
        except (TypeError, ValueError, OSError) as error:  # odd values in a configuration, sources that are gone
            raise FlatUnusable(f"this model's flat form cannot be named: {error!r}") from error

    def _read_flat(self, model: nn.Module, facts: EngineFacts) -> TransferReport:
        key, layout = self._named(model, facts)
        name = key.file_name(facts.rank)
        with ExitStack() as held:
            try:
                found = held.enter_context(flat_form(self._store.store, key, facts.rank, layout.digest))
                touched = frozenset(buffers_in(self._checked(found, name, lambda: found.header(name))))
            except TransferTimeout as error:
                raise FlatUnusable(f"the flat form cannot be opened: {error}") from error  # nothing was copied yet
            self._touched = touched
            return self._checked(found, name, lambda: read_flat(found, name, model, layout, reach=self._store))

    def _checked(self, found: StoredObject, name: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except Corrupt as error:
            self._damage = Damage(found.id, name, error.offset)
            raise

    def _by_checkpoint(self, model: nn.Module, ways: Ways) -> tuple[str, TransferReport | None]:
        if not self._settings.capture:
            self._held.nothing("it was not asked for")
            return ways.checkpoint()
        try:
            key, before = self._named(model, ways.facts)
        except FlatUnusable as error:
            self._no_flat_form(str(error))
            return ways.checkpoint()
        seen = state_of(model)
        used, transfer = ways.checkpoint()
        if used != CHECKPOINT:
            self._no_flat_form("the weights did not come from the store")
            return used, transfer
        try:
            after = layout_of(model)
            if after.digest != before.digest:
                raise FlatUnusable("loading changes the layout of its parameters")
            present = state_of(model)
            buffers = {*filled_buffers(seen, present), *(self._touched & present.buffers.keys())}
            self._capture(model, after, tuple(sorted(buffers)), key, ways)
        except FlatUnusable as error:
            self._no_flat_form(str(error))
        return used, transfer

    def _capture(self, model: nn.Module, layout: Layout, buffers: tuple[str, ...], key: FlatKey, ways: Ways) -> None:
        rank, damaged = ways.facts.rank, self._damage and self._damage.object
        with suppress(FlatUnusable, StorageError), flat_form(self._store.store, key, rank, layout.digest) as found:
            if found.id != damaged:  # asked for checkpoint order, or published meanwhile
                self._held.nothing(f"object {found.id} is there")
                return
        free_bytes = memory_for_capture(ways.ranks_here)
        kept = capture(model, layout, buffers, key, rank, free_bytes=free_bytes)
        if not self._held.hold(replace(kept, replaces=self._damage), self._store):
            raise FlatUnusable("this process keeps the parameters of another model already")

    def _no_flat_form(self, why: str) -> None:
        self._held.nothing(why)
        self._tell(f"there will be no flat form of this model: {why}")

    def _tell(self, reason: str) -> None:
        self._record.reasons.append(reason)
        self._say(reason)
