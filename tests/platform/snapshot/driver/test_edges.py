"""kill -9 of whoever talks to the driver, and of whom it talks about, at every edge of the table.

The caller is a real subprocess that the fake driver kills right before or right after a change of state; then another
process reads back and goes on. The edges are enumerated from the table, so that a new one cannot be left out.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.errors import GangError, GangLost, GangUnsettled
from ebbtide.snapshot.driver.gang import move
from ebbtide.snapshot.driver.gang_plan import Verb
from ebbtide.snapshot.driver.port import GpuMap
from ebbtide.snapshot.driver.process_states import STEADY, TABLE, Call, ProcessState
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, When, script_of, write_script
from tests.platform.snapshot.driver.calls import PATHS, make
from tests.platform.snapshot.driver.sleepers import sleepers

EDGES = [(state, call, when) for state, calls in TABLE.items() for call in calls for when in When]
ONE_CALL = """
import sys
from pathlib import Path
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide.snapshot.driver.process_states import Call
from tests.platform.snapshot.driver.calls import make
make(FakeDriver(Path(sys.argv[1])), Call(sys.argv[2]), int(sys.argv[3]))
"""
ONE_VERB = """
import sys
from pathlib import Path
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide.snapshot.driver.gang import Pace, move
from ebbtide.snapshot.driver.gang_plan import Verb
driver = BoundedDriver(FakeDriver(Path(sys.argv[1])))
move(Verb(sys.argv[2]), driver, tuple(map(int, sys.argv[3:])), pace=Pace(at_once=1))
"""
ROOT = Path(__file__).parents[4]


def must_all_be_killed(jobs: list[tuple[object, ...]]) -> None:
    """Run each of these, a program and its arguments, and see that it dies by SIGKILL."""

    def run(job: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
        code, *words = map(str, job)
        return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)

    with ThreadPoolExecutor(2) as pool:  # as many at a time as a small machine can start
        for done in pool.map(run, jobs):
            assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_killed_caller_leaves_a_state_that_is_read_back_and_led_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with sleepers(len(EDGES)) as targets:
        jobs: list[tuple[object, ...]] = []
        for place, (state, call, when) in enumerate(EDGES):
            book, pid = tmp_path / str(place), targets[place].pid
            for step in PATHS[state]:
                make(FakeDriver(book), step, pid)
            write_script(script_of(book), [Rule(call.value, Do.DIE, when)])
            jobs.append((ONE_CALL, book, call.value, pid))
        must_all_be_killed(jobs)
        table = ["killed at              left in         led on to"]
        for place, (state, call, when) in enumerate(EDGES):
            book, pid = tmp_path / str(place), targets[place].pid
            driver = FakeDriver(book)
            left = driver.state(pid)
            assert left is (state if when is When.BEFORE else TABLE[state][call])
            table.append(f"{when.value:6} {call.value:15} {left.name:15} {lead_on(driver, pid, left)}")
        record_property("table", "\n".join(table))


def lead_on(driver: FakeDriver, pid: int, left: ProcessState) -> str:
    """What a helper that has just started can do with it."""
    for verb, goal in ((Verb.PARK, ProcessState.CHECKPOINTED), (Verb.RESUME, ProcessState.RUNNING)):
        if left in STEADY:
            move(verb, BoundedDriver(driver), (pid,))
            assert driver.state(pid) is goal
        else:
            with pytest.raises(GangUnsettled, match="if that process has died, kill it"):
                move(verb, BoundedDriver(driver), (pid,))
            assert driver.state(pid) is left, "nobody may touch what another process may still be copying"
    return "CHECKPOINTED, RUNNING" if left in STEADY else "refused: kill the process"


GANG_CALLS = {Verb.PARK: [Call.LOCK, Call.CHECKPOINT], Verb.RESUME: [Call.RESTORE, Call.UNLOCK]}


def kill_movers(folder: Path, num_ranks: int, dying: list[int]) -> None:
    """Kill whoever parks or resumes a gang, at each of its calls about the ranks ``dying``; let another go on."""
    edges = [
        (verb, call, rank, when)
        for verb, calls in GANG_CALLS.items()
        for call in calls
        for rank in dying
        for when in When
    ]
    with sleepers(num_ranks) as targets:
        pids = tuple(one.pid for one in targets)
        jobs: list[tuple[object, ...]] = []
        for place, (verb, call, rank, when) in enumerate(edges):
            book = folder / str(place)
            if verb is Verb.RESUME:
                move(Verb.PARK, BoundedDriver(FakeDriver(book)), pids)
            write_script(script_of(book), [Rule(call.value, Do.DIE, when, pid=pids[rank])])
            jobs.append((ONE_VERB, book, verb.value, *pids))
        must_all_be_killed(jobs)
        for place, (verb, _, _, _) in enumerate(edges):
            driver = FakeDriver(folder / str(place))
            for again in (verb, Verb.RESUME if verb is Verb.PARK else Verb.PARK):
                move(again, BoundedDriver(driver), pids)
            made = calls_of(folder / str(place))
            assert len(made) == num_ranks * (4 if verb is Verb.PARK else 6), "a call was made twice"


def test_a_gang_whose_mover_was_killed_is_parked_or_resumed_by_the_next(tmp_path: Path) -> None:
    kill_movers(tmp_path, num_ranks=2, dying=[0])


@pytest.mark.hunt
def test_a_gang_whose_mover_was_killed_at_any_rank_is_parked_or_resumed_by_the_next(tmp_path: Path) -> None:
    kill_movers(tmp_path, num_ranks=3, dying=[0, 1, 2])


def calls_of(book: Path) -> list[tuple[str, int]]:
    with open_state(book) as read:
        return [(call, pid) for call, pid in read.calls]


class KillsTarget:
    """A `Driver` that kills the process that it is asked about, at one call, on one side of it."""

    def __init__(self, driver: FakeDriver, call: Call, when: When, target: subprocess.Popen[bytes]) -> None:
        self._driver, self._call, self._when, self._target = driver, call, when, target
        self.capabilities, self.state = driver.capabilities, driver.state

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._around(Call.LOCK, pid, lambda: self._driver.lock(pid, timeout_ms))

    def checkpoint(self, pid: int) -> None:
        self._around(Call.CHECKPOINT, pid, lambda: self._driver.checkpoint(pid))

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        self._around(Call.RESTORE, pid, lambda: self._driver.restore(pid, gpu_map))

    def unlock(self, pid: int) -> None:
        self._around(Call.UNLOCK, pid, lambda: self._driver.unlock(pid))

    def _around(self, call: Call, pid: int, ask: Callable[[], None]) -> None:
        now = (call, pid) == (self._call, self._target.pid)
        if now and self._when is When.BEFORE:
            self._kill()
        ask()
        if now and self._when is When.AFTER:
            self._kill()

    def _kill(self) -> None:
        self._target.kill()
        self._target.wait()


@pytest.mark.parametrize("verb", GANG_CALLS)
def test_a_rank_that_is_killed_costs_its_gang_and_leaves_no_other_rank_locked(verb: Verb, tmp_path: Path) -> None:
    for call in GANG_CALLS[verb]:
        for when in When:
            with sleepers(3) as targets:
                pids = tuple(one.pid for one in targets)
                fake = FakeDriver(tmp_path / f"{call.value}-{when.value}")
                if verb is Verb.RESUME:
                    move(Verb.PARK, BoundedDriver(fake), pids)
                with pytest.raises(GangLost, match="fall back to the last durable state") as caught:
                    move(verb, BoundedDriver(KillsTarget(fake, call, when, targets[1])), pids)
                assert caught.value.states[pids[1]] is None
                for pid in (pids[0], pids[2]):
                    assert fake.state(pid) is caught.value.states[pid]
                    assert fake.state(pid) is not ProcessState.LOCKED


def test_errors_survive_the_way_to_another_process(tmp_path: Path) -> None:
    import pickle

    driver = FakeDriver(tmp_path / "book")
    write_script(script_of(tmp_path / "book"), [Rule("lock", Do.REFUSE)])
    with sleepers(2) as targets, pytest.raises(GangError) as caught:
        move(Verb.PARK, BoundedDriver(driver), tuple(one.pid for one in targets))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    assert again.states == caught.value.states
    assert [str(one) for one in again.causes.values()] == [str(one) for one in caught.value.causes.values()]
