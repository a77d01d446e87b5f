"""The ledger in the arbiter's own terms: events, the policy's memory, the configuration, keys, and names of fences."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ebbtide.ledger.epoch_log import EpochLog, LedgerHealth
from ebbtide.ledger.errors import SnapshotDeclined
from ebbtide.ledger.reader import replay
from ebbtide.pool.events import Event
from ebbtide.pool.ids import SlotId
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.journal.recovery import (
    CONFIGS_KEPT,
    MEMORY,
    Recovered,
    decode_event,
    encode_event,
    snapshot_of,
)

__all__ = ["CONFIGS_KEPT", "Journal", "Recovered", "decode_event", "encode_event", "fence_record", "recover"]

# Some 30,000 events, which a replay takes 2-3 s for on one core: what an arbiter's restart may cost (measured.md).
SNAPSHOT_BYTES = 8 << 20
SNAPSHOT_FILES = 64  # each restart begins a file, and each file's first record names all that a replay needs
SNAPSHOT_RETRY_S = 60.0  # after there was no room for one


def recover(directory: Path, *, up_to: int | None = None) -> Recovered:
    """Replay the ledger in ``directory`` from its newest snapshot on."""
    found = Recovered()
    for record in replay(directory, up_to=up_to, from_snapshot=True):
        found.take(record.payload)
    return found


class Journal:
    """The open ledger of one arbiter; all but :meth:`health` for one thread.

    It folds what it writes, so that a snapshot says exactly what was queued before it.
    """

    def __init__(
        self,
        log: EpochLog,
        known: Recovered,
        *,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        log: just opened.
        known: what was recovered up to its epoch; not changed.
        snapshot_bytes: of records after a snapshot, then comes the next.
        clock: monotonic seconds.
        """
        self._log, self._known, self._clock = log, known.copy(), clock
        self._snapshot_bytes = snapshot_bytes
        self._rolling: Future[int] | None = None
        self._not_before_s = 0.0

    @property
    def epoch(self) -> int:
        """The epoch that is written now; it grows with every snapshot."""
        return self._log.epoch

    def write(
        self, events: Sequence[Event], *, memory: Memory | None = None, extra: Sequence[Mapping[str, Any]] = ()
    ) -> Future[int]:
        """Queue records, together; the future is done when they are durable."""
        records: list[dict[str, Any]] = [encode_event(event) for event in events]
        if memory is not None:
            records.append({"type": "memory", "memory": MEMORY.dump_python(memory, mode="json")})
        done = self._log.append([*records, *(dict(record) for record in extra)])
        for event in events:
            self._known.take_event(event)  # guard: what is written is folded in
        if memory is not None:
            self._known.memory = memory
        for record in extra:
            self._known.take(record)
        return done

    def keep_short(self) -> Future[int] | None:
        """Queue a snapshot when a replay would read too much; None: none is due. The future is as that of ``write``,
        but a snapshot for which there is no room is no error: see :class:`SnapshotDeclined`.
        """
        if self._rolling is not None and not self._rolling.done():  # guard: one snapshot at a time
            return None
        if self._rolling is not None and isinstance(self._rolling.exception(), SnapshotDeclined):
            self._rolling, self._not_before_s = None, self._clock() + SNAPSHOT_RETRY_S
        cost = self._log.replay_cost()
        # A pool whose snapshot is larger than the bound writes as much again before the next one.
        due = (
            cost.record_bytes > max(self._snapshot_bytes, cost.snapshot_bytes)
            or cost.files > SNAPSHOT_FILES  # guard: many small files make a snapshot
        )
        if (
            not due
            or self._clock() < self._not_before_s  # guard: a pause before the next snapshot when there was no room
            or self._log.health().broken
        ):
            return None
        self._rolling = self._log.roll(snapshot_of(self._known))
        return self._rolling

    def health(self) -> LedgerHealth:
        """How the ledger does."""
        return self._log.health()

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the file; one that hangs is left to its thread."""
        self._log.close(timeout_s)


def fence_record(slot: SlotId, name: str) -> dict[str, Any]:
    """A record that says which placement group holds ``slot``; an empty name: none does."""
    return {"type": "fence", "slot": slot, "name": name}
