"""What a slot lock's file says: who holds the lock, and which other processes its holder answers for. JSON.

While somebody holds the lock, the lock is what counts. But a holder may use the GPU by a process tree of which it is no
part: the supervisor of a session. If everybody who held the lock for such a tree is killed, the lock is free at once
and the tree lives on until its leader notices. So the holder names it here, and a lock without a holder counts as held
as long as the tree that its file names may live. Emptied whenever the lock is let go in order.

Not guaranteed: that a tree is seen whose leader is killed too, of those that have left its process group.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.client.messages import LockHolder
from ebbtide.system.process import boot_id, is_alive, started_ticks

UNKNOWN_HOLDER = LockHolder(workload="unknown", epoch=0, pid=0, started=0)
"""Somebody holds the lock and has not (yet) written who: it is not free, and nobody can be killed for it."""

_LIMIT_BYTES = 4096  # ours is about 200 bytes
_SESSION = 6 - 3  # proc(5): field 6; fields from 3 on follow the command's closing bracket


@dataclass(frozen=True, slots=True)
class HeldTree:
    """A process tree that a lock's holder answers for.

    Args:
        pid: of its leader, and so the number of its process group and process session.
        started: of the leader, in clock ticks since boot; the least that it may be if the tree is only expected.
        until_s: expected to appear until this time of CLOCK_BOOTTIME, as one that is revived; 0.0: it is there.
        boot: of the machine.
    """

    pid: int
    started: int
    until_s: float = 0.0
    boot: str = ""

    def may_live(self) -> bool:
        """Whether a process of it can hold memory, or come to."""
        if self.boot != boot_id():  # guard: a tree of another boot is gone
            return False
        if time.clock_gettime(time.CLOCK_BOOTTIME) < self.until_s:
            return True
        started = started_ticks(self.pid)
        if started is not None and (started >= self.started if self.until_s else started == self.started):
            return is_alive(self.pid, started) or self._members_live()
        return started is None and self._members_live()

    def _members_live(self) -> bool:
        """Those that outlived their leader, whose number nobody gets while they are there."""
        try:
            os.killpg(self.pid, 0)  # without this quick question all processes would be looked at, again and again
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return any(_is_member(entry, self.pid) for entry in os.listdir("/proc") if entry.isdigit())


def write_content(fd: int, holder: LockHolder, tree: HeldTree | None = None) -> None:
    """Say who holds the lock of this file.

    Raises:
        OSError: it cannot be written.
    """
    said = asdict(holder) | ({"tree": asdict(tree)} if tree is not None else {})
    text = json.dumps(said).encode()
    # Longer first, and never empty in between: a reader finds what was, what is, or half of it ("unknown").
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def read_content(fd: int) -> LockHolder:
    """Who holds the lock of this file, by its own words; `UNKNOWN_HOLDER` where there are none."""
    return _parse(os.pread(fd, _LIMIT_BYTES, 0))[0]


def left_behind(fd: int) -> LockHolder | None:
    """Whose tree lives on though nobody holds the lock of this file; None: there is none. Nobody can be killed for it
    (``pid`` 0): its leader must be the last of it."""
    content = os.pread(fd, _LIMIT_BYTES, 0)
    if b'"tree"' not in content:
        return None
    holder, tree = _parse(content)
    if tree is None or not tree.may_live():  # guard: a slot whose tree may live is not told to be free
        return None
    return LockHolder(holder.workload, holder.epoch, pid=0, started=0, rank=holder.rank)


def _parse(content: bytes) -> tuple[LockHolder, HeldTree | None]:
    try:
        found = json.JSONDecoder().raw_decode(content.decode())[0]  # the end of something longer may follow
        holder = LockHolder(
            workload=str(found["workload"]),
            epoch=int(found["epoch"]),
            pid=int(found["pid"]),
            started=int(found["started"]),
            rank=int(found["rank"]),
        )
        named = found.get("tree")
        tree = None
        if named is not None:
            until_s, boot = float(named["until_s"]), str(named["boot"])
            tree = HeldTree(int(named["pid"]), int(named["started"]), until_s, boot)
    except (ValueError, KeyError, TypeError):
        return UNKNOWN_HOLDER, None
    return holder, tree


def _is_member(pid: str, session: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return (
        int(fields[_SESSION]) == session
        # guard: a zombie holds nothing
        and fields[0] not in "ZX"
    )
