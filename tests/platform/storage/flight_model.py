"""A participant of a single flight in the world of `shared_model`: the real core, the real steps, in virtual time."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ebbtide.storage.coordination import flight_states as word
from ebbtide.storage.coordination.flight_machine import BEGIN, Limits, advance
from ebbtide.storage.coordination.flight_progress import as_seen
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.file_operations import Operation
from ebbtide.storage.leases import lease_file
from ebbtide.storage.leases.lease_file import LeaseFile, Note, Pace, Record
from ebbtide.storage.leases.liveness import Sighting, Tenancy
from tests.platform.storage.shared_model import Process, Sleep, World

T = TypeVar("T")
Run = Generator[Operation | Sleep, Any, T]

HERE = Path("/shared/flights")
PACE = Pace(beat_s=1.0, stale_after_s=12.0, answer_s=5.0)
TRIES = 300  # of 50 s each: in the slowest of these worlds 20 in a row are lost now and then (seed 4555874)


@dataclass
class Story:
    """What happened, for the judges.

    Attributes:
        begun: (time, process, attempt) of all work that was begun.
        checks: (time, attempt) of every check that let its leader go on.
        published: (time, process, attempt).
        ended: how each process ended, in words.
    """

    begun: list[tuple[float, int, int]] = field(default_factory=list)
    checks: list[tuple[float, int]] = field(default_factory=list)
    published: list[tuple[float, int, int]] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)


class Participant:
    """One process that wants the thing.

    Args:
        steps: how many steps the work has, with a check between them.
        fails: what the work of an attempt comes to: "", "refused" or "failed".
    """

    def __init__(
        self, world: World, number: int, story: Story, *, steps: int, fails: Callable[[int], str], deadline_s: float
    ) -> None:
        self.process: Process = world.process(number)
        self._world, self._number, self._story = world, number, story
        self._steps, self._fails = steps, fails
        self._limits = Limits(self.process.clock_s() + deadline_s, PACE.beat_s, settle_s=70.0, tries=TRIES)
        self._sightings: dict[LeaseFile, Sighting] = {}
        self._file = LeaseFile("key")
        self._record = Record("", "", PACE.stale_after_s)
        self._tenancy = Tenancy(PACE.fence_s, 0.0, lost="nothing is held")
        self._beating = False
        self._hidden_s = world.random.choice([0.0, 60.0])

    def main(self) -> Run[None]:
        known, instruction = BEGIN
        while True:
            yield Sleep(0.0)  # paused here, killed here
            match instruction:
                case word.Look():
                    yield Sleep(self._world.latency_s())
                    event: word.Event = word.Looked(self._sees_it(settling=known.state is word.State.SETTLING))
                case word.Read():
                    event = yield from self._read(instruction.at_least)
                case word.Claim():
                    event = yield from self._claim(instruction.number)
                case word.Work():
                    event = yield from self._work(instruction.failures)
                case word.Pause():
                    yield Sleep(instruction.seconds)
                    event = word.Elapsed()
                case _:
                    yield from self._let_go({"outcome": "done"})
                    self._story.ended[self._number] = type(instruction).__name__
                    return
            known, instruction = advance(known, event, self.process.clock_s(), self._limits)

    def _sees_it(self, *, settling: bool) -> bool:
        """Whoever looked before it was there may have its absence from a cache for a while."""
        hidden_s = self._hidden_s if settling else 0.0
        return any(at_s + hidden_s <= self._world.now_s for at_s, _, _ in self._story.published)

    def _read(self, at_least: int) -> Run[word.Event]:
        began_s = self.process.clock_s()
        try:
            contents = yield from lease_file.look(HERE, "key", at_least)
        except StorageError as error:
            return word.Unreadable(str(error))
        ended_s = self.process.clock_s()
        self._sightings = {
            file: self._sightings[file].again(content, began_s, ended_s, PACE.stale_after_s)
            if file in self._sightings
            else Sighting(file, content, ended_s)
            for file, content in contents.items()
        }
        for sighting in self._sightings.values():
            return as_seen(sighting, dead=sighting.is_dead(PACE.stale_after_s))
        return word.Seen(0, word.Standing.NONE)

    def _claim(self, number: int) -> Run[word.Event]:
        file = LeaseFile("key", number)
        record = Record(f"{self._number:016d}{number:016d}", f"process {self._number}", PACE.stale_after_s)
        tenancy = Tenancy(PACE.fence_s, self.process.clock_s())
        try:
            objection = yield from lease_file.create(HERE, file, record)
        except StorageError as error:
            return word.NotClaimable(str(error), hopeless=False)
        if objection:
            return word.Taken()
        self._file, self._record, self._tenancy = file, record, tenancy
        self.process.start(self._beat(record.token))
        return word.Claimed()

    def _beat(self, token: str) -> Run[None]:
        while True:
            yield Sleep(PACE.beat_s)
            if self._record.token != token or self._record.released or self._tenancy.lost:
                return
            yield from self._beat_once()

    def _beat_once(self) -> Run[None]:
        self._beating = True
        self._record = Record(
            self._record.token, self._record.who, PACE.stale_after_s, self._record.beat + 1, note=self._record.note
        )
        began_s = self.process.clock_s()
        try:
            objection = yield from lease_file.beat(HERE, self._file, self._record)
        except StorageError as error:
            self._tenancy = self._tenancy.failed(str(error), self.process.clock_s())
        else:
            self._tenancy = self._tenancy.beaten(began_s, self.process.clock_s(), objection)
        self._beating = False

    def _holds(self) -> bool:
        self._tenancy = self._tenancy.at(self.process.clock_s())
        if not self._tenancy.lost:
            self._story.checks.append((self._world.now_s, self._file.number))
        return not self._tenancy.lost

    def _work(self, failures: int) -> Run[word.Event]:
        number = self._file.number
        self._story.begun.append((self._world.now_s, self._number, number))
        for _ in range(self._steps):
            yield Sleep(self._world.random.uniform(0.0, 2.0))
            if not self._holds():
                return word.Lost()
        if fails := self._fails(number):
            yield from self._let_go({"outcome": fails, "kind": "Refused", "failures": failures + 1, "error": "no"})
            return word.Erred(final=fails == "refused")
        # Published in the same moment as checked: what a pause in between does is said in the docs of `single_flight`.
        if not self._holds():
            return word.Lost()
        self._story.published.append((self._world.now_s, self._number, number))
        return word.Worked()

    def _let_go(self, note: Note) -> Run[None]:
        while self._beating:  # beats and the last word are one thread's
            yield Sleep(0.05)
        if self._tenancy.at(self.process.clock_s()).lost:
            return
        self._record = Record(
            self._record.token, self._record.who, PACE.stale_after_s, self._record.beat + 1, released=True, note=note
        )
        self._tenancy = replace(self._tenancy, lost="let go")
        try:
            yield from lease_file.release(HERE, self._file, self._record)
        except StorageError:
            return
