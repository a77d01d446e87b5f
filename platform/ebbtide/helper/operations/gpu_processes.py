"""Which processes of a registered tree use its GPUs. Only the driver knows: it is asked about each one.

A workload is registered by its root. That may never touch a GPU itself (a session's leader, a shell), while children of
it do, and others come and go. So the tree is walked anew for each verb, and a process counts if the driver says where
it stands. One that the driver refuses to speak of does not use CUDA; unless it has CUDA's device open all the same, as
a fork of a process that does: then nobody knows what it keeps on the GPU.

Not guaranteed: that a process is found which left the tree (its parent ended, and nobody in the tree adopts orphans),
or which begins to use a GPU after the look.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebbtide.helper.criu.machine_profile import Gpus
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.errors import DriverError, DriverRefused, ProcessGone
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.system.process import boot_id, is_alive

STATE_WAIT_S = 5.0  # a state is a look into the driver's memory; more means that the driver hangs
UNUSED = "unused"
"""The word for a tree of which no process uses a GPU."""
CUDA_DEVICE = "/dev/nvidia-uvm"  # what opens it uses CUDA; a mere look at GPUs (NVML) does without

_PPID, _START = 4 - 3, 22 - 3  # fields of proc(5) after the command's closing bracket


@dataclass(frozen=True, slots=True)
class User:
    """One process that uses a GPU, and where the driver says that it stands, or why it does not say."""

    pid: int
    started: int
    state: ProcessState | DriverError


@dataclass(frozen=True, slots=True)
class GpuTree:
    """One workload.

    Attributes:
        users: parents first.
        why_not: what the driver said of its root, if that is none of them.
        unclear: why it is not known what one of its processes keeps on a GPU; "": of all it is.
        is_gone: its root has ended, and whoever is left of it cannot be found.
    """

    name: str
    root: int
    users: tuple[User, ...] = ()
    why_not: str = ""
    unclear: str = ""
    is_gone: bool = False

    @property
    def word(self) -> str:
        """Where it stands, for the asker: the driver's word if that is the same for all users."""
        if self.is_gone:
            return ""
        return word_of({user.pid: user.state for user in self.users})


def look_at_gpus(driver: BoundedDriver, entries: Sequence[Entry]) -> tuple[GpuTree, ...]:
    """Walk these trees and ask the driver about each of their processes, once for all."""
    families = [family(entry) for entry in entries]
    pids = tuple(dict.fromkeys(pid for members in families for pid in members))
    answers = driver.states(pids, STATE_WAIT_S) if pids else {}
    return tuple(_tree(entry, members, answers) for entry, members in zip(entries, families, strict=True))


def gpus_of(driver: BoundedDriver) -> Gpus | None:
    """What an image of processes that were taken off a GPU here depends on; None: nothing takes them off."""
    has = driver.driver.capabilities()
    return Gpus(driver=has.driver, chips=dict(has.gpus)) if has.can_checkpoint else None


def family(entry: Entry) -> dict[int, int]:
    """The processes of a workload that live, by pid, with their start times; its root first. Never this process."""
    if entry.boot != boot_id() or not is_alive(entry.pid, entry.started):
        return {}
    found = {entry.pid: entry.started}
    rows = list(_rows())
    while more := [(pid, started) for pid, parent, started in rows if parent in found and pid not in found]:
        found |= more
    found.pop(os.getpid(), None)
    return found


def word_of(states: Mapping[int, ProcessState | DriverError | None]) -> str:
    """One word for several processes: theirs, if they are in the same state."""
    if not states:
        return UNUSED
    for state in states.values():
        if not isinstance(state, ProcessState):
            return "unknown" if state is None else f"unknown: {state}"
    words = {pid: state.name.lower() for pid, state in states.items() if isinstance(state, ProcessState)}
    same = set(words.values())
    if ProcessState.FAILED.name.lower() in same:
        return ProcessState.FAILED.name.lower()
    return same.pop() if len(same) == 1 else "mixed: " + ", ".join(f"{pid} {word}" for pid, word in words.items())


def _tree(entry: Entry, members: Mapping[int, int], answers: Mapping[int, ProcessState | DriverError]) -> GpuTree:
    if not members:
        return GpuTree(entry.name, entry.pid, is_gone=True)
    users, unclear = [], ""
    for pid, started in members.items():
        answer = answers[pid]
        if isinstance(answer, ProcessGone):
            continue
        if not isinstance(answer, DriverRefused):
            users.append(User(pid, started, answer))
        elif _has_open(pid, CUDA_DEVICE):
            unclear = unclear or f"process {pid} has {CUDA_DEVICE} open, and the driver does not know it ({answer})"
    of_root = answers.get(entry.pid)
    why_not = str(of_root) if isinstance(of_root, DriverRefused) else ""
    return GpuTree(entry.name, entry.pid, tuple(users), why_not, unclear)


def _rows() -> Iterator[tuple[int, int, int]]:
    """Pid, parent and start time of every process that is no zombie."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text.rpartition(")")[2].split()
            if fields[0] not in ("Z", "X"):
                yield int(name), int(fields[_PPID]), int(fields[_START])


def _has_open(pid: int, path: str) -> bool:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == path:
                    return True
    return False
