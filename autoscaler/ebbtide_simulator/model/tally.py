"""What can only be seen while a run goes on: how long moves take, which GPUs come in time, why some are free."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts from the end of the warm-up on; times in seconds, each beside the slots that it concerns.

    Attributes:
        lent: from the move that gives slots to a job until it trains there.
        reclaimed: from the move that takes them back until they are free.
        answered: from the move that gives slots to a replica, or wakes it, until it answers.
        asked_slot_s: slots whose replicas the requests of the last seconds keep busy, over time.
        on_time_slot_s: of those, the ones whose replicas were ready.
        reserved_slot_s: free because the reserve says so, while somebody waits for slots.
        fragmented_slot_s: free on top of that while somebody waits: too few for a gang, or not on one node.
    """

    lent: list[tuple[float, int]] = field(default_factory=list)
    reclaimed: list[tuple[float, int]] = field(default_factory=list)
    answered: list[tuple[float, int]] = field(default_factory=list)
    asked_slot_s: float = 0.0
    on_time_slot_s: float = 0.0
    reserved_slot_s: float = 0.0
    fragmented_slot_s: float = 0.0

    def demand(self, needed: int, ready: int, for_s: float) -> None:
        """Requests needed so many slots, so many had a replica that was ready."""
        self.asked_slot_s += needed * for_s
        self.on_time_slot_s += min(needed, ready) * for_s

    def idle(self, free: int, reserve: int, waits: Collection[object], for_s: float) -> None:
        """So many slots were free, and these waited for some."""
        if waits and free > 0:
            self.reserved_slot_s += min(free, reserve) * for_s
            self.fragmented_slot_s += max(0, free - reserve) * for_s
