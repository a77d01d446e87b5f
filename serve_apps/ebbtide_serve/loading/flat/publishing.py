"""From the captures of all ranks to a published flat form: the replica's part, once it serves.

One rank set per key in the whole cluster: whoever comes second watches the first for as long as it takes to tell a
living one from a dead one; then it gives its memory back, or takes over. The leader has every rank write its file into
one work directory and publishes when the last of them is there, so ranks find the files of all or of none.

A form that a rank found damaged is moved out of the way first, unless it is sound by now: what another replica puts in
its place has the same content, and so the same id. Where only some ranks found damage, the others hold nothing to
publish: it is moved away all the same, and the next start makes it anew.

Costs the engine nothing but a look at a variable once a second. Blocks: meant for a thread of its own.

Not guaranteed: that there is a flat form afterwards. `Outcome.why` says why not, and the next start tries again.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ebbtide.storage.coordination.single_flight import Leading, Terms, run_single_flight
from ebbtide.storage.errors import Corrupt, NotPublished, StorageError
from ebbtide.storage.leases.lease_holder import DEFAULT_PACE
from ebbtide.storage.leases.object_leases import this_process
from ebbtide.storage.maintenance.space_reservation import reserve
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import FileEntry, Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.transport.transport import Range
from ebbtide_serve.loading.flat.capture import Damage

FLIGHTS = "flights"  # directory of the store, of everything that only one may do
LOOK_EVERY_S = 1.0
# Of no rank, while all others wait with copies of their parameters: a rank that is silent for so long will not write.
PATIENCE_S = 3600.0
DROP_TRIES, DROP_AGAIN_S = 5, 60.0  # a call is given up after a minute; nobody waits for this
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
    replaces: frozenset[Damage]


def publish_flat(
    store: ObjectStore,
    call: Call,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock_s: Callable[[], float] = time.monotonic,
    patience_s: float = PATIENCE_S,
    others_s: float = OTHERS_S,
) -> Outcome:
    """Publish what the ranks hold, if they do and nobody else does it.

    Args:
        store: as this process reaches it.
        call: to the ranks of this replica's engine.
        patience_s: for the slowest rank.
        others_s: how long to watch somebody else who is at it.

    Raises:
        Exception: what ``call`` raises: the engine is dead.
    """
    why = "its publication was cut off"
    try:
        outcome = _published(_Work(store, call, sleep, clock_s, patience_s), others_s)
        why = outcome.why or f"object {outcome.object} is published"
    finally:
        _give_back(call, why, sleep)
    return outcome


def _published(work: "_Work", others_s: float) -> Outcome:
    states = work.call("ebbtide_flat_state")
    try:
        held = _together(states)
    except ValueError as error:
        with suppress(StorageError):  # whatever is left of it, the next start that meets it tries again
            work.set_aside(_damages(states))
        return Outcome(None, str(error))
    try:
        found = run_single_flight(
            work.store.paths.root / FLIGHTS,
            held.ref_name,
            work=lambda leading: work.lead(leading, held),
            look=lambda: work.look(held),
            terms=Terms(who=f"flat form, {this_process()}", deadline_s=others_s, tries=1),
        )
    except StorageError as error:
        return Outcome(None, str(error))
    return Outcome(found)


def _give_back(call: Call, why: str, sleep: Callable[[float], None]) -> None:
    """Have the ranks drop what they hold: else it would be gone from the node for as long as the replica lives."""
    for _ in range(DROP_TRIES - 1):
        try:
            call("ebbtide_flat_drop", why)
        except TimeoutError:  # busy: a step, a compilation
            sleep(DROP_AGAIN_S)
        else:
            return
    call("ebbtide_flat_drop", why)


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
        replaces=_damages(states),
    )


def _damages(states: Sequence[dict[str, Any]]) -> frozenset[Damage]:
    return frozenset(Damage(**state["replaces"]) for state in states if state.get("replaces"))


@dataclass(frozen=True, slots=True)
class _Work:
    """The flight's work."""

    store: ObjectStore
    call: Call
    sleep: Callable[[float], None]
    clock_s: Callable[[], float]
    patience_s: float

    def look(self, held: _Held) -> ObjectId | None:
        """The flat form, if every rank would find it and it is sound where it was found damaged."""
        try:
            found = {self.store.refs.read(held.ref_name, tag).object for tag in held.tags}
            for one in found:
                self.store.open(one).close()
            if any(self._is_damaged(replace) for replace in held.replaces if replace.object in found):
                return None
        except StorageError:
            return None
        return min(found)

    def lead(self, leading: Leading, held: _Held) -> ObjectId:
        """Have it written, and publish it."""
        attempt = f"flat-{held.key['model'][:16]}-{leading.attempt}-{time.time_ns():x}"
        uses = [held.key["model"]]
        with self.store.publication(Kind.FLAT, held.key, uses=uses, attempt_name=attempt) as publication:
            reserve(self.store.ports, publication.attempt, held.size_bytes)
            self.call("ebbtide_flat_stage", attempt)
            publication.add(*self._entries(leading, held))
            leading.confirm()
            self.set_aside(held.replaces)
            return publication.publish([(held.ref_name, tag) for tag in held.tags])

    def set_aside(self, damages: Iterable[Damage]) -> None:
        """Take objects out of the store that are still damaged where they were found so.

        Raises:
            StorageError: it cannot be told.
        """
        for damage in damages:
            if self._is_damaged(damage):
                with suppress(NotPublished):  # somebody else did
                    self.store.quarantine(damage.object)

    def _is_damaged(self, one: Damage) -> bool:
        """Looks at nothing but the place: an object of many gigabytes takes minutes."""
        try:
            with self.store.open(one.object) as stored:
                stored.read_file(one.file, ranges=None if one.offset is None else [Range(one.offset, 1)])
        except (Corrupt, NotPublished):
            return True
        return False

    def _entries(self, leading: Leading, held: _Held) -> list[FileEntry]:
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
            leading.report("write", 0, held.size_bytes)
            self.sleep(LOOK_EVERY_S)
