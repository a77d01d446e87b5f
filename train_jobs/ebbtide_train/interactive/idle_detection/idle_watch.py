"""Looks at a running session now and then, tells its owner when it is idle, and says when it is to be put aside."""

import time
from collections.abc import Callable

from ebbtide_train.interactive.idle_detection.idle_rules import Action, IdleRules, Memory, Use, look, note_told
from ebbtide_train.interactive.idle_detection.owner_notices import Notice, OwnerNotices
from ebbtide_train.interactive.ports import GpuMeter
from ebbtide_train.interactive.process_tree.tree import Tree

LOOKS = 20  # within the shortest time that matters, so that no look adds more than a twentieth to it
EVERY_MIN_S, EVERY_MAX_S = 0.2, 10.0  # a look reads /proc: milliseconds
AGAIN_S = 3600.0  # after a refused image: what hinders it seldom changes, and a try stops the session for a moment


class IdleWatch:
    """One session's, over all its lives under one supervisor.

    Args:
        session, owner: for the notices.
        touched_s: when its owner touched it last, see `SessionFolder.touched_s`.
        say: is told a line for people when something changes.
    """

    def __init__(
        self,
        rules: IdleRules,
        *,
        session: str,
        owner: str,
        herald: OwnerNotices,
        meter: GpuMeter,
        touched_s: Callable[[], float],
        say: Callable[[str], None] = lambda _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._session, self._owner = rules, session, owner
        self._herald, self._meter, self._touched_s, self._say, self._clock = herald, meter, touched_s, say, clock
        least_s = min(rules.idle_after_s or EVERY_MAX_S, rules.warn_before_s or EVERY_MAX_S)
        self._every_s = min(EVERY_MAX_S, max(EVERY_MIN_S, least_s / LOOKS))
        self._memory = Memory()
        self._next_s = 0.0

    def begin(self) -> None:
        """It runs, or runs again: what was before does not count."""
        self._memory, self._next_s = Memory(), self._clock()

    def look(self, tree: Tree) -> Action:
        """Look if it is time to; what follows for the supervisor: PUT_ASIDE, or nothing."""
        now_s = self._clock()
        if self._rules.idle_after_s is None or now_s < self._next_s:
            return Action.NOTHING
        self._next_s = now_s + self._every_s
        if self._memory.warned and self._herald.delivered():
            self._memory = note_told(self._memory)
        use = Use(at_s=now_s, cpu_s=tree.cpu_s(), gpu=self._meter.use(), touched_s=self._touched_s())
        self._memory, action = look(self._rules, self._memory, use)
        if action is Action.WARN:
            self._herald.tell(self._notice(now_s))
        elif action is Action.CALL_OFF:
            self._herald.call_off()
            self._say("used again: it is not put aside")
        return action

    def refused(self, why: str) -> None:
        """It cannot be put aside; it counts as used, and is not tried again for long."""
        self._memory = Memory()
        self._next_s = self._clock() + AGAIN_S
        self._say(f"idle, and cannot be put aside: {why}")

    def why(self) -> str:
        """The reason that the pool keeps."""
        told = "its owner was told" if self._memory.told else "its owner could not be told"
        return f"idle for {self._rules.idle_after_s:g} s; {told}; touch it or `ebbtide resume {self._session}`"

    def _notice(self, now_s: float) -> Notice:
        assert self._rules.idle_after_s is not None, "warned of nothing"
        left_s = max(0.0, self._memory.quiet_since_s + self._rules.idle_after_s - now_s)
        return Notice(
            session=self._session, owner=self._owner, idle_s=now_s - self._memory.quiet_since_s, left_s=left_s
        )
