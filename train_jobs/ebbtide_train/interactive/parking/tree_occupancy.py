"""A session's hold on its slot: the lock, the watchdog that shares it, and the tree that they answer for.

Order is the point, as in ``parking.occupancy``. Taking: lock, then watchdog, then processes. Leaving: processes,
watchdog, and the lock last, so that the next holder of the lock finds nothing.
"""

import os
import time

from ebbtide.client.messages import Lease
from ebbtide.helper.protocol.requests import IMAGE_S
from ebbtide_train.interactive.errors import CannotStart, SessionCrashed
from ebbtide_train.interactive.ports import LockFor, SharedLock
from ebbtide_train.interactive.process_tree.leader import GO, me
from ebbtide_train.interactive.process_tree.tree import Process, Tree, this_process
from ebbtide_train.interactive.process_tree.watchdog_client import START_S, WatchdogClient
from ebbtide_train.interactive.session_folder import SessionFolder

LOCK_S = 60.0  # for a slot that the lease says is ours
KILL_S = 10.0  # a process killed takes milliseconds; one in a system call that hangs, until that returns
POLL_S = 0.01


class TreeOccupancy:
    """One session's, over all the leases that it gets from one supervisor."""

    def __init__(self, place: SessionFolder, lock_for: LockFor) -> None:
        self._place, self._lock_for = place, lock_for
        self._lock: SharedLock | None = None
        self._post: WatchdogClient | None = None
        self._expected: Process | None = None  # pid, and the least start time, of a leader that may come
        self.tree: Tree | None = None

    def take(self, lease: Lease) -> None:
        """Take the slot lock; a tree that stayed on the node gets its share of it."""
        lock = self._lock_for(lease)
        lock.acquire(LOCK_S)
        self._lock = lock
        if self.tree is not None:
            self._answer_for(self.tree.leader)  # guard: a tree that stayed is named in the lock had anew
        if self._post is not None:
            shared = lock.share()
            self._post.share(shared)
            os.close(shared)

    def start(self) -> Process:
        """Start the tree that the place describes.

        Raises:
            CannotStart: it does not run.
        """
        assert self._lock is not None, "no process before the lock"
        self._place.write("keeper", me())
        shared = self._lock.share()
        waits, go = os.pipe()
        try:
            self._post, leader = WatchdogClient.start(self._place, shared, waits)
            self.tree = Tree(leader)
            # Before it runs anything: should all who hold the lock be killed, the lock's file speaks for it.
            self._answer_for(leader)  # guard: a tree is named in its slot's lock before it runs
            os.write(go, GO)
        finally:
            for descriptor in (shared, waits, go):
                os.close(descriptor)
        deadline_s = time.monotonic() + START_S
        # What is put into an image before its leader has said who it is could not be revived.
        while self._place.read("leader") is None:
            if not leader.alive() or time.monotonic() > deadline_s:
                raise CannotStart(f"its leader did not come up; see {self._place.output}")
            time.sleep(POLL_S)
        return leader

    def expect(self) -> None:
        """A tree is about to be revived: from now on somebody answers for it.

        Raises:
            CannotStart: its watchdog does not run.
        """
        assert self._lock is not None, "no process before the lock"
        self._place.write("keeper", me())
        known = self._place.read("leader")
        if known is None:
            raise CannotStart(f"{self._place.folder} does not say which process led it; it cannot be revived")
        since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        pid = int(known["pid"])
        # guard: a tree is named in its slot's lock before it is revived
        self._lock.answer_for((pid, since), expected_s=IMAGE_S)
        shared = self._lock.share()
        try:
            self._post = WatchdogClient.await_revival(self._place, shared, pid=pid, since=since, within_s=IMAGE_S)
        finally:
            os.close(shared)
        self._expected = Process(pid, since)

    def came(self) -> Process | None:
        """The leader that was expected, if it is there. Who had its number before is a stranger."""
        assert self._expected is not None, "expected first"
        found = this_process(self._expected.pid)
        return found if found is not None and found.started >= self._expected.started else None

    def leave_to_watchdog(self) -> None:
        """What is expected may still come: the watchdog ends it then, and keeps the lock until it has."""
        assert self._post is not None and self._lock is not None, "expected first"
        self._post.close()
        self._lock.hand_over()
        self._post = self._lock = None

    def revived(self, leader: Process) -> None:
        """It runs."""
        assert self._post is not None, "expected first"
        self._post.watch(leader)
        self.tree = Tree(leader)
        self._answer_for(leader)  # guard: a tree that was revived is named in its slot's lock as it is now

    def guarded(self) -> bool:
        """Whether the watchdog lives."""
        return self._post is not None and self._post.alive()

    def end(self, stop_s: float) -> None:
        """End every process: SIGTERM, then, after ``stop_s``, SIGKILL. Nothing happens if there is none.

        Raises:
            SessionCrashed: one of them cannot be killed; the lock stays held.
        """
        if self.tree is not None:
            if stop_s > 0:
                self.tree.terminate()
                self.tree.wait_gone(stop_s)
            if not self.tree.kill(KILL_S):
                left = sorted(process.pid for process in self.tree.look())
                raise SessionCrashed(f"processes {left} cannot be killed: the slot stays taken until they are gone")
        self.left()

    def left(self) -> None:
        """Nothing of the tree is on this node any more."""
        assert self.tree is None or self.tree.gone(), "a tree that lives keeps its watchdog"
        if self._post is not None:
            if self.tree is None:
                self._post.dismiss()
            self._post.close()
            self._post = None
        self.tree = None
        if self._lock is not None:
            self._lock.answer_for(None)  # guard: a tree that is gone is not named in the lock

    def _answer_for(self, leader: Process) -> None:
        if self._lock is not None:
            self._lock.answer_for((leader.pid, leader.started))

    def release(self) -> None:
        """Let the slot go; nothing of the session is on it any more."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
