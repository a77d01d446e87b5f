"""The verbs for all ranks of a gang on one node: all of it, or back to where it was, or an error that says where it is.

The order is `gang_plan`'s; here the calls are made. A call whose outcome is not known is never made again: the state
is read back until it says what happened. Safe to call again after any error and after the death of a caller.

Two callers must not move one gang at the same time. Ranks on other nodes are the business of whoever calls: all nodes
must have locked theirs before one of them checkpoints.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.errors import (
    DriverError,
    DriverFailed,
    DriverRefused,
    DriverUnknown,
    GangError,
    GangLost,
    GangRefused,
    GangUnsettled,
    ProcessGone,
    ProcessLost,
)
from ebbtide.snapshot.driver.gang_plan import WAYS, Step, Verb, goals_back, next_step
from ebbtide.snapshot.driver.port import GpuMap
from ebbtide.snapshot.driver.process_states import STEADY, Call, ProcessState, after

_POLL_S = 0.02  # reading a state back is cheap, and a parked gang's slots wait for it


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each call for one rank may take, in seconds, and how many ranks have one at the same time.

    The defaults allow for eight ranks that share the memory bandwidth of one host: 80 GB took 15 s alone on an H100
    (NVIDIA/cuda-checkpoint issue 29), 145 GB took 18 s on a B200 (ai-dynamo/snapshot, benchmarks).

    Attributes:
        lock_s: for the work on the GPU to end; the driver keeps this time itself.
        checkpoint_s: for copying out.
        restore_s: for copying back.
        unlock_s: for letting go.
        read_s: for the answer of `Driver.state`.
        settle_s: beyond the driver's own timeout of a lock, for it to say so; and for a call that was given up to
            come back after all.
        at_once: 1 for ranks that share memory between processes (CUDA IPC): the driver wants those one by one.
    """

    lock_s: float = 10.0
    checkpoint_s: float = 180.0
    restore_s: float = 180.0
    unlock_s: float = 10.0
    read_s: float = 10.0
    settle_s: float = 10.0
    at_once: int = 64

    def __post_init__(self) -> None:
        if self.lock_s < 0.001 or self.at_once < 1:  # to the driver, 0 ms is for ever
            raise ValueError(f"a lock needs at least 1 ms and a step at least one rank, not {self}")

    def of(self, call: Call) -> float:
        """Seconds that this call may take."""
        return {
            Call.LOCK: self.lock_s + self.settle_s,
            Call.CHECKPOINT: self.checkpoint_s,
            Call.RESTORE: self.restore_s,
            Call.UNLOCK: self.unlock_s,
        }[call]


def move(
    verb: Verb,
    driver: BoundedDriver,
    pids: tuple[int, ...],
    *,
    pace: Pace | None = None,
    gpu_maps: Mapping[int, GpuMap] | None = None,
    is_same: Callable[[int], bool] = lambda _pid: True,
) -> None:
    """Do ``verb`` for the processes of a gang; when this returns, the driver has confirmed it for each.

    Args:
        verb: what. Ranks that are at its goal already are left alone.
        driver: shared by all gangs of the node.
        pids: the ranks on this node, in order.
        pace: deadlines.
        gpu_maps: for restoring, by pid; who is not in it stays. Ranks that were restored before another was refused
            are checkpointed again, and then belong to their new GPUs: see `GangError.moved`.
        is_same: whether a pid still is the process that is meant; asked right before each call about it.

    Raises:
        GangRefused: it did not work; all ranks are whole and where `WAYS` leads them back to.
        GangUnsettled: some ranks are not where they should be, or do not say.
        GangLost: some ranks are lost; the others were led back as far as they could be.
    """
    if gpu_maps and verb not in (Verb.RESTORE, Verb.RESUME):
        raise ValueError(f"{verb.value} moves nothing to other GPUs")
    mover = _Mover(verb, driver, pace or Pace(), gpu_maps or {}, is_same)
    mover.look(pids)
    began = {pid: state for pid, state in mover.seen.items() if state is not None}
    failed_at = mover.advance(dict.fromkeys(pids, WAYS[verb].goal), on_after_failure=False)
    if failed_at is None:
        return
    goals = goals_back(verb, began, failed_at)
    mover.look_again()
    mover.advance(goals, on_after_failure=True)
    raise mover.error({**began, **goals} if failed_at is not Call.UNLOCK else dict.fromkeys(pids, WAYS[verb].goal))


@dataclass
class _Mover:
    """One run of a verb: what was seen and what went wrong."""

    verb: Verb
    driver: BoundedDriver
    pace: Pace
    gpu_maps: Mapping[int, GpuMap]
    is_same: Callable[[int], bool]
    seen: dict[int, ProcessState | None] = field(default_factory=dict)
    causes: dict[int, DriverError] = field(default_factory=dict)
    moved: list[int] = field(default_factory=list)

    def look(self, pids: tuple[int, ...]) -> None:
        """Read all states; raises if the verb cannot begin, with nothing touched."""
        for pid, answer in self.driver.states(pids, self.pace.read_s).items():
            self._note(pid, answer)
            if answer in STEADY and answer not in WAYS[self.verb].starts:
                assert isinstance(answer, ProcessState)
                need = " or ".join(sorted(state.name for state in WAYS[self.verb].starts))
                self.causes[pid] = DriverRefused(self.verb.value, pid, f"it is {answer.name}", f"it must be {need}")
        if self.causes and all(isinstance(cause, DriverRefused) for cause in self.causes.values()):
            # No driver here, or a process that does not use CUDA: not knowing its state means no danger then.
            raise GangRefused(self.verb.value, self.seen, self.causes, "Nothing was touched; use another tier")
        if self.causes:
            raise self.error({})

    def look_again(self) -> None:
        """Ask once more for states that did not come in time, so that those ranks can be led back as well."""
        end_s = time.monotonic() + self.pace.read_s
        while unknown := tuple(pid for pid, state in self.seen.items() if state is None and self._may_still_say(pid)):
            for pid, answer in self.driver.states(unknown, self.pace.read_s).items():
                self._note(pid, answer)
            if time.monotonic() >= end_s:
                break
            time.sleep(_POLL_S)

    def _may_still_say(self, pid: int) -> bool:
        return not self.driver.under_way(pid) and not isinstance(self.causes.get(pid), ProcessLost)

    def advance(self, goals: dict[int, ProcessState], *, on_after_failure: bool) -> Call | None:
        """Make steps until all ranks are at their goals, or cannot get there.

        Args:
            goals: by pid.
            on_after_failure: go on with the other ranks when one fails. An unlock always does.

        Returns:
            The first call that did not work for some rank; None: all went well.
        """
        failed_at: Call | None = None
        while True:
            there = {pid: state for pid in goals if (state := self.seen[pid]) in STEADY and state is not None}
            step = next_step(there, {pid: goals[pid] for pid in there})
            if step is None:
                return failed_at
            failed = self._make(step, stop=not on_after_failure)
            if failed:
                failed_at = failed_at or step.call
                if not on_after_failure and step.call is not Call.UNLOCK:
                    return failed_at
                goals = {pid: goal for pid, goal in goals.items() if pid not in failed}

    def error(self, due: Mapping[int, ProcessState]) -> GangError:
        """What to raise, given where ranks should be now."""
        made_of = (self.verb.value, self.seen, self.causes)
        if any(isinstance(cause, ProcessLost) for cause in self.causes.values()):
            return GangLost(*made_of, "Kill the ranks that live and fall back to the last durable state", self.moved)
        astray = any(self.seen[pid] is not state for pid, state in due.items())
        if astray or any(state not in STEADY for state in self.seen.values()):
            return GangUnsettled(*made_of, "Read the states back and ask again, or kill the ranks", self.moved)
        return GangRefused(*made_of, "Use another tier", self.moved)

    def _make(self, step: Step, *, stop: bool) -> list[int]:
        """Make one step, some ranks at a time; returns who failed. With ``stop``, the rest is spared."""
        failed: list[int] = []
        for first in range(0, len(step.pids), self.pace.at_once):
            some = step.pids[first : first + self.pace.at_once]
            asks = {pid: self._ask(step.call, pid) for pid in some}
            outcomes = self.driver.calls(step.call, asks, self.pace.of(step.call))
            end_s = time.monotonic() + self.pace.settle_s
            failed += [pid for pid, error in outcomes.items() if not self._settle(step.call, pid, error, end_s)]
            if failed and stop:
                break
        return failed

    def _ask(self, call: Call, pid: int) -> Callable[[], None]:
        make = self._call(call, pid)

        def ask() -> None:
            if not self.is_same(pid):
                raise ProcessGone(call.value, pid, "the process that was meant has ended", "its GPU memory is free")
            make()

        return ask

    def _call(self, call: Call, pid: int) -> Callable[[], None]:
        driver = self.driver.driver
        match call:
            case Call.LOCK:
                return lambda: driver.lock(pid, round(self.pace.lock_s * 1000))
            case Call.CHECKPOINT:
                return lambda: driver.checkpoint(pid)
            case Call.RESTORE:
                return lambda: driver.restore(pid, self.gpu_maps.get(pid, {}))
            case _:
                return lambda: driver.unlock(pid)

    def _settle(self, call: Call, pid: int, error: DriverError | None, end_s: float) -> bool:
        """Read back what became of a call; whether it took effect."""
        before = self.seen[pid]
        assert before is not None
        target = after(before, call)
        while True:
            come_back = not self.driver.under_way(pid)  # asked first: what is read after it, stands
            answer = self.driver.states((pid,), self.pace.read_s)[pid]
            if come_back or time.monotonic() >= end_s:
                break
            time.sleep(_POLL_S)
        self._note(pid, answer)
        if answer is target and come_back and (error is None or isinstance(error, DriverUnknown)):
            if call is Call.RESTORE and self.gpu_maps.get(pid):
                self.moved.append(pid)
            return True
        if not come_back:
            self.seen[pid] = None  # whatever it says now, it may say something else a moment later
        where = answer.name if isinstance(answer, ProcessState) else "not to be asked"
        text = f"the driver says that it is done, but it is {where}"
        self._blame(error or DriverUnknown(call.value, pid, text, "read its state back"))
        return False

    def _blame(self, error: DriverError) -> None:
        """Remember what went wrong first, or what is worse than that."""
        known = self.causes.get(error.pid)
        if known is None or (isinstance(error, ProcessLost) and not isinstance(known, ProcessLost)):
            self.causes[error.pid] = error

    def _note(self, pid: int, answer: ProcessState | DriverError) -> None:
        """Take down what the driver says about a process."""
        if isinstance(answer, DriverError):
            self.seen[pid] = None
            self._blame(answer)
            return
        self.seen[pid] = answer
        if answer is ProcessState.FAILED:
            self._blame(DriverFailed("state", pid, "it is FAILED", "kill it, use the last durable state"))
        elif answer not in STEADY:
            remedy = "let whoever copies its memory complete that; if that process has died, kill it"
            self._blame(DriverUnknown("state", pid, f"it is {answer.name}", remedy))
