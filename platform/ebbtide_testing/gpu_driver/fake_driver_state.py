"""What a `FakeDriver` remembers: a small JSON file that outlives whoever wrote it, as a kernel's memory would.

Changes are made under a lock of the operating system, which a killed holder lets go, and are published by rename: a
reader sees the file before a change or after it.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.snapshot.driver.process_states import ProcessState

_CALLS_KEPT = 1000  # for tests to look at; some runs are long


@dataclass(slots=True)
class DriverState:
    """The content.

    Attributes:
        states: by pid and what else tells processes apart (see `fake_users`); whoever is not in it is RUNNING.
        gpus: the map of the last restore, by the same.
        seen: how many calls fitted each rule of the script, by its place.
        calls: what has changed a state, oldest first: ``[call, pid]``.
    """

    states: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, dict[str, str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)

    def state(self, who: str) -> ProcessState:
        """Where a process stands."""
        return ProcessState[self.states.get(who, ProcessState.RUNNING.name)]

    def set_state(self, who: str, state: ProcessState) -> None:
        """Remember where it stands."""
        self.states[who] = state.name


@contextmanager
def open_state(path: Path) -> Iterator[DriverState]:
    """The book at ``path``, empty if there is none; what was changed is kept if the block ends well."""
    with open(path.with_name(path.name + ".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        book = DriverState(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else DriverState()
        yield book
        book.calls = [(str(call), int(pid)) for call, pid in book.calls[-_CALLS_KEPT:]]
        draft = path.with_name(path.name + ".draft")
        text = {"states": book.states, "gpus": book.gpus, "seen": book.seen, "calls": book.calls}
        draft.write_text(json.dumps(text), encoding="utf-8")
        os.replace(draft, path)
