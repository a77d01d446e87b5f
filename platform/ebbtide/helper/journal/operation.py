"""One operation on one workload: its identity, and the lines that it writes into the journal."""

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.criu.machine_profile import Machine
from ebbtide.helper.journal.journal_file import Journal
from ebbtide.helper.journal.journal_state import Entry, Line
from ebbtide.helper.journal.workload_states import Op, Step
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk
from ebbtide.system.process import boot_id


@dataclass(frozen=True, slots=True)
class Workplace:
    """What operations work with.

    Attributes:
        runs: folder for what CRIU says while it runs, one folder for each operation.
        now_s: seconds since the epoch, for people who read the journal.
    """

    journal: Journal
    disk: Disk
    runs: Path
    now_s: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Tool:
    """CRIU, and the machine as far as images depend on it."""

    criu: Criu
    machine: Machine


@dataclass(frozen=True, slots=True)
class Operation:
    """Writes lines about one operation on one workload."""

    place: Workplace
    first: Line

    @classmethod
    def on(cls, place: Workplace, op: Op, entry: Entry, step: Step = Step.INTENT, **facts: Any) -> Self:
        """Begin one, with its first line."""
        line = Line(
            at_s=place.now_s(), operation=f"{op.value}-{secrets.token_hex(8)}", op=op, step=step, name=entry.name,
            pid=entry.pid, started=entry.started, boot=entry.boot, generation=entry.generation, uid=entry.uid,
            facts=facts,
        )  # fmt: skip
        place.journal.write(line)
        return cls(place, line)

    @property
    def id(self) -> str:
        """The same in all of its lines."""
        return self.first.operation

    @property
    def run(self) -> Path:
        """The folder for what CRIU says."""
        return self.place.runs / self.id

    def note(self, step: Step, **facts: Any) -> None:
        """One more line. It repeats the facts of those before, so that the last line tells all."""
        under_way = self.place.journal.book.entries[self.first.name].under_way
        self.place.journal.write(self._line(step, {**under_way[-1].facts, **facts}))

    def clear_run(self) -> None:
        """Remove what CRIU said, before the line that ends the operation; what the disk keeps is left: it is small."""
        with suppress(StorageError):
            self.place.disk.remove_tree(self.run)

    def note_revived(self, pid: int, started: int, generation: int, gpus: Mapping[str, str]) -> None:
        """The last line of a revival: from here on these are the workload's processes, taken off these GPUs."""
        now = {"pid": pid, "started": started, "generation": generation, "boot": boot_id()}
        facts = {"gpus": dict(gpus)} if gpus else {}
        self.place.journal.write(self._line(Step.DONE, facts).model_copy(update=now))

    def _line(self, step: Step, facts: dict[str, Any]) -> Line:
        return self.first.model_copy(update={"step": step, "facts": facts, "at_s": self.place.now_s()})
