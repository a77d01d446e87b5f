"""What the ledger is told besides events, for people: why workloads wait, and what an observing pool would have done.

Each is told when it is news; a replay passes it by.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ebbtide.pool.events import Move
from ebbtide_autoscaler.journal.dry_run import news, would_record


class Annotations:
    """What was told last, by one arbiter."""

    def __init__(self) -> None:
        self._waits = ""
        self._would: frozenset[str] = frozenset()
        self._number = 0

    def waits(self, waits: Mapping[str, str], now_s: float) -> list[dict[str, Any]]:
        """A record of why workloads wait, when the reasons (numbers aside) are not those said last."""
        plain = re.sub(r"[\d.]+", "#", repr(sorted(waits.items())))
        if plain == self._waits:
            return []
        self._waits = plain
        return [{"type": "waits", "at_s": now_s, "subjects": sorted(waits), "waits": dict(waits)}]

    def would(self, moves: Iterable[Move], *, epoch: int, now_s: float) -> list[dict[str, Any]]:
        """Records of what an observing pool would have done, when that is news; no moves: it does not observe."""
        bodies, self._would = news(moves, self._would)
        first = self._number + 1
        self._number += len(bodies)
        return [would_record(body, name=f"{epoch}.w{first + place}", at_s=now_s) for place, body in enumerate(bodies)]
