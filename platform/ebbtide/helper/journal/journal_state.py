"""What the journal's lines add up to: who is registered, where each stands, what is under way. Pure.

Every line goes through `apply`, when it is written and when it is read back, so that a restarted helper knows what
the one before knew. A line that the tables of `workload_states` do not allow raises and changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from ebbtide.helper.journal.workload_states import ENDS, STANDING, Op, Standing, Step, may_follow


class Line(BaseModel):
    """One line of the journal.

    Attributes:
        at_s: seconds since the epoch, for people; nothing is decided by it.
        operation: id of the operation, the same in all of its lines.
        name: of the workload.
        pid, started: its root process, start time in clock ticks since boot.
        boot: id of the boot in which that process lives: after another boot the pid means nobody.
        generation: how many times the workload has got processes; 1 at first, one more with each revival.
        uid: to whom the process belongs.
        facts: what later steps and the reading back need.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: float
    operation: str
    op: Op
    step: Step
    name: str
    pid: int
    started: int
    boot: str
    generation: int
    uid: int
    facts: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload.

    Attributes:
        image_dir: where its image is, while it is dumped or being dumped or revived; else "".
        story: the lines that put it where it stands, without what is under way; empty if it came with that.
        under_way: lines of the operation that has not ended, oldest first; empty: none.
    """

    name: str
    pid: int
    started: int
    boot: str
    generation: int
    uid: int
    standing: Standing
    image_dir: str = ""
    story: tuple[Line, ...] = ()
    under_way: tuple[Line, ...] = ()

    @property
    def gpus(self) -> Mapping[str, str]:
        """Where it was taken off its GPUs, if its processes came from an image and have not been put back yet: what
        each GPU of that machine was, by uuid. Empty: on this one."""
        found: Mapping[str, str] = self.story[0].facts.get("gpus", {}) if self.story else {}
        return found


@dataclass(frozen=True, slots=True)
class JournalState:
    """All workloads by name."""

    entries: Mapping[str, Entry] = field(default_factory=dict)

    def apply(self, line: Line) -> "JournalState":
        """The book after one more line.

        Raises:
            ValueError: the tables do not allow it.
        """
        entry = self.entries.get(line.name)
        under_way = entry.under_way if entry else ()
        if under_way and under_way[-1].operation != line.operation:  # guard: one operation at a time is in the book
            raise ValueError(f"{line.op.value} of {line.name} while {under_way[-1].op.value} is under way")
        last = under_way[-1].step if under_way else None
        # guard: the book refuses what the tables do not list; a line that is not allowed is not written
        if not may_follow(line.op, last, line.step):
            raise ValueError(f"{line.op.value} of {line.name} cannot go from {last} to {line.step}")
        rest = {name: one for name, one in self.entries.items() if name != line.name}
        after = _after(entry, line, () if line.step in ENDS else (*under_way, line))
        return JournalState(rest if after is None else {**rest, line.name: after})

    def open_operations(self) -> tuple[tuple[Line, ...], ...]:
        """What was under way, each with its lines."""
        return tuple(entry.under_way for entry in self.entries.values() if entry.under_way)

    def lines(self) -> tuple[Line, ...]:
        """Few lines that add up to this book."""
        return tuple(line for entry in self.entries.values() for line in (*entry.story, *entry.under_way))


def _after(entry: Entry | None, line: Line, under_way: tuple[Line, ...]) -> Entry | None:
    """The entry after a line that is allowed; None: it is gone."""
    is_new = line.op is Op.REGISTER or (line.op, line.step) == (Op.REVIVE, Step.DONE)
    if is_new:
        facts = {"gpus": line.facts["gpus"]} if "gpus" in line.facts else {}
        born: tuple[Line, ...] = (line.model_copy(update={"op": Op.REGISTER, "step": Step.DONE, "facts": facts}),)
        return _entry(line, Standing.LIVE, story=born)
    if line.op is Op.FORGET or (entry is None and line.step in ENDS):
        return None
    image_dir = str(line.facts.get("image_dir", entry.image_dir if entry else ""))
    if entry is None:  # an image of another node, or of a helper before
        return _entry(line, STANDING.get((line.op, line.step), Standing.DUMPED), image_dir, under_way=under_way)
    gone = line.op is Op.DISCARD and line.step is Step.DONE and entry.standing is not Standing.LIVE
    if gone and image_dir == entry.image_dir:
        return None  # the image was all that was left of it
    is_dumped = (line.op, line.step) == (Op.DUMP, Step.DONE)
    if line.step in ENDS and not entry.story and not is_dumped:
        return None  # it was known by this operation only
    if line.op is Op.DISCARD:
        return replace(entry, under_way=under_way)
    if line.step is Step.UNDONE:  # back to where its story left it
        before = entry.story[-1]
        image_dir = str(before.facts.get("image_dir", ""))
        return replace(entry, standing=STANDING[before.op, before.step], image_dir=image_dir, under_way=())
    standing = STANDING.get((line.op, line.step), entry.standing)
    story = (*entry.story, *entry.under_way, line) if is_dumped else entry.story
    if (line.op, line.step) == (Op.RESTORE, Step.DONE):
        story = tuple(_at_home(one) for one in story)
    return replace(
        entry, standing=standing, story=story, under_way=under_way,
        image_dir="" if standing is Standing.LIVE else image_dir,
    )  # fmt: skip


def _at_home(line: Line) -> Line:
    """It is on GPUs of this machine from now on."""
    return line.model_copy(update={"facts": {key: fact for key, fact in line.facts.items() if key != "gpus"}})


def _entry(
    line: Line,
    standing: Standing,
    image_dir: str = "",
    *,
    story: tuple[Line, ...] = (),
    under_way: tuple[Line, ...] = (),
) -> Entry:
    return Entry(
        line.name, line.pid, line.started, line.boot, line.generation, line.uid, standing, image_dir, story, under_way
    )
