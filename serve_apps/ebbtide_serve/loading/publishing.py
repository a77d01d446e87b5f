"""From the captures of all ranks to a published flat form: the replica's part, once it serves.

One rank set per key in the whole cluster: whoever comes second watches the first for as long as it takes to tell a
living one from a dead one; then it gives its memory back, or takes over. The leader has every rank write its file into
one work directory and publishes when the last of them is there, so ranks find the files of all or of none.

Costs the engine nothing but a look at a variable once a second. Blocks: meant for a thread of its own.

Not guaranteed: that there is a flat form afterwards. `Outcome.why` says why not, and the next start tries again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ebbtide.storage.budget import Budget, reserve
from ebbtide.storage.errors import NotPublished, StorageError
from ebbtide.storage.flight import Leading, Terms, fly
from ebbtide.storage.holding import DEFAULT_PACE
from ebbtide.storage.leases import this_process
from ebbtide.storage.manifest import FileEntry, Kind
from ebbtide.storage.names import ObjectId, object_id
from ebbtide.storage.object_store import ObjectStore

FLIGHTS = "flights"  # directory of the store, of everything that only one may do
LOOK_EVERY_S = 1.0
# Of no rank, while all others wait with copies of their parameters: a rank that is silent for so long will not write.
PATIENCE_S = 3600.0
OTHERS_S = 2 * DEFAULT_PACE.stale_after_s  # after half of it a dead one is known to be dead


class Call(Protocol):
    """Has every rank do something, and returns the answers in the order of ranks."""

    def __call__(self, method: str, *args: object) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: the object, or why there is none."""

    object: ObjectId | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Held:
    """What all ranks hold, seen to belong together."""

    key: dict[str, str]
    ref_name: str
    tags: tuple[str, ...]
    size_bytes: int
    replaces: frozenset[str]


def publish_flat(
    store: ObjectStore,
    call: Call,
    *,
    budget: Budget | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock_s: Callable[[], float] = time.monotonic,
    patience_s: float = PATIENCE_S,
    others_s: float = OTHERS_S,
) -> Outcome:
    """Publish what the ranks hold, if they do and nobody else does it.

    Args:
        store: as this process reaches it.
        call: to the ranks of this replica's engine.
        budget: what the store may take.
        patience_s: for the slowest rank.
        others_s: how long to watch somebody else who is at it.

    Raises:
        Exception: what ``call`` raises: the engine is dead.
    """
    try:
        held = _together(call("ebbtide_flat_state"))
    except ValueError as error:
        call("ebbtide_flat_drop", str(error))
        return Outcome(None, str(error))
    work = _Work(store, call, held, budget or Budget(), sleep, clock_s, patience_s)
    try:
        found = fly(
            store.paths.root / FLIGHTS,
            held.ref_name,
            work=work.lead,
            look=work.look,
            terms=Terms(who=f"flat form, {this_process()}", deadline_s=others_s, tries=1),
        )
    except StorageError as error:
        call("ebbtide_flat_drop", str(error))
        return Outcome(None, str(error))
    call("ebbtide_flat_drop", f"object {found} is published")
    return Outcome(found)


def _together(states: Sequence[dict[str, Any]]) -> _Held:
    """What the ranks hold; raises ValueError with the reason if it is not a whole."""
    for rank, state in enumerate(states):
        if state["phase"] != "held":
            raise ValueError(f"rank {rank} holds nothing: {state['why'] or state['phase']}")
    first = states[0]
    ranks = sorted(state["rank"] for state in states)
    if ranks != list(range(first["ranks"])):
        raise ValueError(f"ranks {ranks} are there, and {first['ranks']} are needed")
    if any(state["key"] != first["key"] for state in states):
        raise ValueError("the ranks hold parts of different models")
    return _Held(
        key=dict(first["key"]),
        ref_name=first["ref_name"],
        tags=tuple(state["tag"] for state in states),
        size_bytes=sum(state["bytes"] for state in states),
        replaces=frozenset(state["replaces"] for state in states if state["replaces"]),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The flight's work."""

    store: ObjectStore
    call: Call
    held: _Held
    budget: Budget
    sleep: Callable[[float], None]
    clock_s: Callable[[], float]
    patience_s: float

    def look(self) -> ObjectId | None:
        """The flat form, if every rank would find it."""
        if self.held.replaces:
            return None
        try:
            found = {self.store.refs.read(self.held.ref_name, tag).object for tag in self.held.tags}
            for one in found:
                self.store.manifest(one)
        except StorageError:
            return None
        return min(found)

    def lead(self, leading: Leading) -> ObjectId:
        """Have it written, and publish it."""
        attempt = f"flat-{self.held.key['model'][:16]}-{leading.attempt}-{time.time_ns():x}"
        uses = [self.held.key["model"]]
        with self.store.publication(Kind.FLAT, self.held.key, uses=uses, attempt_name=attempt) as publication:
            reserve(self.store.ports, publication.attempt, self.held.size_bytes, self.budget)
            self.call("ebbtide_flat_stage", attempt)
            publication.add(*self._entries(leading))
            leading.confirm()
            for damaged in self.held.replaces:
                self._set_aside(damaged)
            return publication.publish([(self.held.ref_name, tag) for tag in self.held.tags])

    def _entries(self, leading: Leading) -> list[FileEntry]:
        until_s = self.clock_s() + self.patience_s
        while True:
            states = self.call("ebbtide_flat_state")
            if all(state["phase"] == "staged" for state in states):
                return [FileEntry.model_validate(state["entry"]) for state in states]
            for rank, state in enumerate(states):
                if state["phase"] not in ("staging", "staged"):
                    raise StorageError(f"rank {rank} did not write its file: {state['why'] or state['phase']}")
            if self.clock_s() >= until_s:
                raise StorageError(f"the ranks did not write their files within {self.patience_s:g} s")
            leading.check()
            leading.report("write", 0, self.held.size_bytes)
            self.sleep(LOOK_EVERY_S)

    def _set_aside(self, damaged: str) -> None:
        try:
            self.store.quarantine(object_id(damaged))
        except NotPublished:
            return  # somebody else did
