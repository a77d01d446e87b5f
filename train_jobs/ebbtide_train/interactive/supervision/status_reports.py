"""What a supervisor tells: the pool, by reports of its one rank; and people, by a small file.

Of a session a *step* is one life of it: from a start or revival to the next image. So it is durable when its image
stands, a stop without one counts as a crash, and a crash costs the steps since.
"""

import os
import time
from dataclasses import replace
from typing import Any

from ebbtide.client.messages import Lease, RankPhase, RankReport
from ebbtide_train.interactive.ports import InTheWay
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.interactive.supervision.session_states import PHASES, SessionState
from ebbtide_train.session.coordination.directives import Directives
from ebbtide_train.session.coordination.gate import Gate

REASON_CHARS = 300  # of a reason in a report that is sent ten times a second


class StatusReports:
    """Says the present state, whole, each time."""

    def __init__(
        self,
        gate: Gate,
        orders: Directives,
        place: SessionFolder,
        *,
        job: str,
        incarnation: str,
        node: str,
        lease: Lease,
    ) -> None:
        self._gate, self._orders, self._place = gate, orders, place
        self._report = RankReport(
            job=job,
            incarnation=incarnation,
            rank=0,
            world=1,
            node=node,
            pid=os.getpid(),
            lease_epoch=lease.epoch,
            directive=0,
            phase=RankPhase.STARTING,
            step=0,
            durable_step=0,
            interactive=True,
        )
        self._standing: dict[str, Any] = {"session": job, "node": node, "log": str(place.output)}
        self._in_the_way: InTheWay | None = None

    def say(
        self, state: SessionState, *, images: int, lives: bool, park_refused: str = "", stopped: bool = False
    ) -> None:
        """``lives``: there is more of it than its last image holds. ``stopped``: it leaves, and goes on later."""
        self._report = replace(
            self._report,
            phase=RankPhase.STOPPED if stopped else PHASES[state],
            step=images + lives,
            durable_step=images,
            directive=self._orders.done,
            lease_epoch=self._orders.epoch,
            park_refused=park_refused[:REASON_CHARS],
        )
        self._gate.report(self._report)
        self.note(state=state.value, since_s=time.time(), images=images, park_refused=park_refused)

    def hindered(self, found: InTheWay | None) -> bool:
        """Take in what would keep it from being parked; whether that is new, and to be said."""
        if found is None or found == self._in_the_way:
            return False
        self._in_the_way = found
        self._report = replace(self._report, in_place_hindered=found.park[:REASON_CHARS])
        self._standing |= {"cannot_park": found.park, "cannot_image": found.image}
        return True

    def note(self, **facts: Any) -> None:
        """Change what people are told; a shared directory that fails costs nothing but that."""
        self._standing |= facts
        try:
            self._place.write("standing", self._standing, durable=False)
        except OSError:
            return
