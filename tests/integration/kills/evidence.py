"""Reading what the pool's processes left behind, again and again over an hour, without reading it all each time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.agent.slot_locks.allocation_log import Occupancy, read_occupancies
from ebbtide.agent.slot_locks.slot_lock import read_holder
from ebbtide.ledger.reader import Follower
from ebbtide.pool.events import Event
from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.journal.records import decode_event, recover
from ebbtide_train.session.step_log import StepLine, gang_lines
from tests.integration.kills import judge
from tests.integration.kills.judge import Finding
from tests.integration.kills.pool import JOB, Pool


@dataclass
class StepReader:
    """All step lines of a job; each file is read on from where the last reading ended."""

    run_dir: Path
    lines: list[StepLine] = field(default_factory=list)
    _offsets: dict[Path, int] = field(default_factory=dict)

    def read(self) -> list[StepLine]:
        """Every whole line so far; samples are left out, they fill the memory."""
        for path in sorted((self.run_dir / "steps").glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self.lines.extend(_lines(whole))
        return self.lines


def _lines(raw: bytes) -> Iterator[StepLine]:
    for text in raw.splitlines():
        record = json.loads(text)
        yield StepLine(**{**record, "samples": ()})


@dataclass
class Evidence:
    """The witnesses of one pool. ``steps`` outlives restarts of everything else."""

    pool: Pool
    steps: StepReader = field(init=False)
    _ledger: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.steps = StepReader(self.pool.shared / "train" / JOB)
        self._ledger = Follower(self.pool.shared / "ledger")

    def state(self) -> PoolState:
        """The ledger's own, replayed from the files."""
        return recover(self.pool.shared / "ledger").state

    def new_events(self) -> list[Event]:
        """What the ledger has recorded since the last call."""
        found: list[Event] = []
        while records := self._ledger.poll().records:
            found += [decode_event(one.payload) for one in records if one.payload.get("type") == "event"]
        return found

    def occupancies(self) -> list[Occupancy]:
        """Of all occupants of all time."""
        return read_occupancies(self.pool.shared / "occupancy")

    def crash_lost_steps(self) -> int:
        """As the job's own gangs counted them."""
        return sum(gang.lost_steps for gang in gang_lines(self.pool.shared / "train" / JOB))

    def findings(self) -> list[Finding]:
        """All that does not need the users' word."""
        state = self.state()
        job = state.jobs.get(JobName(JOB))
        charged = job.crash_lost_steps if job is not None else 0
        return [
            *judge.occupancy(self.occupancies(), self.pool.machine_of),
            *judge.ledger(state),
            *judge.steps(self.steps.read(), charged),
            *judge.reasons(self.new_events(), self.pool.silences.take_told()),
        ]

    def orphans(self) -> list[Finding]:
        """Slot locks that are held by somebody who has no lease; only to be asked while nothing moves."""
        state = self.state()
        occupants = {
            f"{self.pool.machine_of(record.slot.node)}-{record.slot.index}": (str(record.occupant), 0)
            for record in state.slots.values()
            if record.occupant is not None
        }
        locked = {}
        for path in sorted(self.pool.lock_dir.glob("*.lock")):
            holder = read_holder(path)
            if holder is not None:
                locked[path.stem] = (holder.workload, holder.pid)
        return judge.orphans(locked, occupants)
