"""The verbs for a gang under faults: all, or back, or an honest word of where it is; and no call twice."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.errors import DriverUnknown, GangLost, GangRefused, GangUnsettled, LockTimeout
from ebbtide.snapshot.driver.gang import Pace, move
from ebbtide.snapshot.driver.gang_plan import WAYS, Verb
from ebbtide.snapshot.driver.no_driver import NoDriver
from ebbtide.snapshot.driver.port import GpuMap
from ebbtide.snapshot.driver.process_states import STEADY, Call, ProcessState
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, When, script_of, write_script
from tests.examples import examples
from tests.platform.snapshot.driver.calls import PATHS, make
from tests.platform.snapshot.driver.sleepers import sleepers

RUNNING, LOCKED, CHECKPOINTED = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED
SOON = Pace(lock_s=2, settle_s=0.3)  # enough for the ranks that do answer, on a machine with much to do


@pytest.fixture(scope="module")
def pids() -> Iterator[tuple[int, ...]]:
    with sleepers(3) as started:
        yield tuple(one.pid for one in started)


class Watched:
    """A `Driver` that notes what it is asked, and checks what must hold at each call."""

    def __init__(self, fake: FakeDriver, pids: tuple[int, ...]) -> None:
        self._fake, self._pids = fake, pids
        self.asked: list[tuple[Call, int]] = []
        self.states_at: list[tuple[Call, set[ProcessState]]] = []
        self.capabilities, self.state = fake.capabilities, fake.state
        self._lock = threading.Lock()

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._note(Call.LOCK, pid)
        self._fake.lock(pid, timeout_ms)

    def checkpoint(self, pid: int) -> None:
        self._note(Call.CHECKPOINT, pid)
        self._fake.checkpoint(pid)

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        self._note(Call.RESTORE, pid)
        self._fake.restore(pid, gpu_map)

    def unlock(self, pid: int) -> None:
        self._note(Call.UNLOCK, pid)
        self._fake.unlock(pid)

    def _note(self, call: Call, pid: int) -> None:
        with self._lock:
            self.asked.append((call, pid))
            self.states_at.append((call, {self._fake.state(one) for one in self._pids}))


Fault = tuple[str, Do, When, int, int]
FAULTS = st.lists(
    st.builds(
        lambda call, do, when, rank, skip: (call, do, when, rank, skip),
        st.sampled_from(["lock", "checkpoint", "restore", "unlock"]),
        st.sampled_from([Do.REFUSE, Do.UNKNOWN, Do.FAIL]),
        st.sampled_from(When),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=3,
)


def rules(faults: list[Fault], pids: tuple[int, ...]) -> list[Rule]:
    return [
        Rule(call, do, When.BEFORE if do is Do.REFUSE else when, pid=pids[rank], skip=skip)
        for call, do, when, rank, skip in faults
    ]


STEADY_STATES = st.sampled_from([RUNNING, LOCKED, CHECKPOINTED])


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(Verb), STEADY_STATES, FAULTS)
def test_whatever_goes_wrong_a_verb_ends_with_all_or_back_or_the_truth(
    pids: tuple[int, ...], verb: Verb, began: ProcessState, faults: list[Fault]
) -> None:
    go_wrong(pids, verb, began, faults)


@pytest.mark.hunt
@settings(max_examples=examples(600), deadline=None)
@given(st.sampled_from(Verb), STEADY_STATES, FAULTS)
def test_whatever_goes_wrong_many_times_over(
    pids: tuple[int, ...], verb: Verb, began: ProcessState, faults: list[Fault]
) -> None:
    go_wrong(pids, verb, began, faults)


def go_wrong(pids: tuple[int, ...], verb: Verb, began: ProcessState, faults: list[Fault]) -> None:
    """Bring a gang to a state, let these faults happen to a verb, and compare what is said with what is."""
    with TemporaryDirectory() as folder:
        book = Path(folder) / "book"
        fake = FakeDriver(book)
        for pid in pids:
            for step in PATHS[began]:
                make(fake, step, pid)
        write_script(script_of(book), rules(faults, pids))
        watched = Watched(fake, pids)
        claimed: dict[int, ProcessState | None]
        try:
            move(verb, BoundedDriver(watched), pids)
            claimed = dict.fromkeys(pids, WAYS[verb].goal)
        except GangRefused as error:
            claimed = error.states
            assert set(claimed.values()) == {WAYS[verb].back.get(began, began)}
            assert error.causes
        except GangUnsettled as error:
            claimed = error.states
            assert set(claimed.values()) <= STEADY
            assert error.causes
        except GangLost as error:
            claimed = error.states
            assert ProcessState.FAILED in claimed.values()
        assert claimed == {pid: fake.state(pid) for pid in pids}
        assert all(count == 1 for count in Counter(watched.asked).values()), "a call was made twice"
        for call, states in watched.states_at:
            if call is Call.CHECKPOINT:
                assert RUNNING not in states, "checkpointed while a rank runs"


def test_a_lock_that_times_out_unlocks_everyone(tmp_path: Path, pids: tuple[int, ...]) -> None:
    fake = FakeDriver(tmp_path / "book")
    write_script(script_of(tmp_path / "book"), [Rule("lock", Do.TIMEOUT, pid=pids[2])])
    with pytest.raises(GangRefused, match="did not end in time") as caught:
        move(Verb.PARK, BoundedDriver(fake), pids)
    assert isinstance(caught.value.causes[pids[2]], LockTimeout)
    assert [fake.state(pid) for pid in pids] == [RUNNING] * 3


def test_a_checkpoint_that_is_refused_gives_the_whole_gang_back_to_its_gpus(
    tmp_path: Path, pids: tuple[int, ...]
) -> None:
    fake = FakeDriver(tmp_path / "book")
    write_script(script_of(tmp_path / "book"), [Rule("checkpoint", Do.REFUSE, pid=pids[1])])
    with pytest.raises(GangRefused):
        move(Verb.PARK, BoundedDriver(fake), pids)
    assert [fake.state(pid) for pid in pids] == [RUNNING] * 3


def test_a_restore_that_is_refused_leaves_the_gang_parked_and_says_who_was_moved(
    tmp_path: Path, pids: tuple[int, ...]
) -> None:
    fake = FakeDriver(tmp_path / "book")
    driver = BoundedDriver(fake)
    move(Verb.PARK, driver, pids)
    write_script(script_of(tmp_path / "book"), [Rule("restore", Do.REFUSE, pid=pids[1])])
    with pytest.raises(GangRefused) as caught:
        move(Verb.RESUME, driver, pids, gpu_maps={pids[0]: {"a": "b"}, pids[1]: {"b": "a"}})
    assert [fake.state(pid) for pid in pids] == [CHECKPOINTED] * 3
    assert caught.value.moved == (pids[0],)


def test_an_unlock_that_is_refused_does_not_stop_the_others(tmp_path: Path, pids: tuple[int, ...]) -> None:
    fake = FakeDriver(tmp_path / "book")
    driver = BoundedDriver(fake)
    move(Verb.PARK, driver, pids)
    write_script(script_of(tmp_path / "book"), [Rule("unlock", Do.REFUSE, pid=pids[0])])
    with pytest.raises(GangUnsettled):
        move(Verb.RESUME, driver, pids, pace=Pace(at_once=1))
    assert [fake.state(pid) for pid in pids] == [LOCKED, RUNNING, RUNNING]
    move(Verb.RESUME, driver, pids)
    assert [fake.state(pid) for pid in pids] == [RUNNING] * 3


@pytest.mark.parametrize("when", When)
def test_an_unknown_outcome_is_read_back(when: When, tmp_path: Path, pids: tuple[int, ...]) -> None:
    """What did happen counts as done; what did not is not tried again."""
    fake = FakeDriver(tmp_path / "book")
    write_script(script_of(tmp_path / "book"), [Rule("checkpoint", Do.UNKNOWN, when, pid=pids[0])])
    if when is When.AFTER:
        move(Verb.PARK, BoundedDriver(fake), pids)
        assert [fake.state(pid) for pid in pids] == [CHECKPOINTED] * 3
        return
    with pytest.raises(GangRefused) as caught:
        move(Verb.PARK, BoundedDriver(fake), pids)
    assert isinstance(caught.value.causes[pids[0]], DriverUnknown)
    assert [fake.state(pid) for pid in pids] == [RUNNING] * 3


class Held(Watched):
    """Its lock of one process does not come back before it is let; it takes effect at once, or at the very end."""

    def __init__(self, fake: FakeDriver, pids: tuple[int, ...], held: int, when: When) -> None:
        super().__init__(fake, pids)
        self._held, self._when = held, when
        self.let = threading.Event()

    def lock(self, pid: int, timeout_ms: int) -> None:
        if pid == self._held and self._when is When.BEFORE:
            self.let.wait(60)
        super().lock(pid, timeout_ms)
        if pid == self._held and self._when is When.AFTER:
            self.let.wait(60)


@pytest.mark.parametrize("when", When)
def test_a_call_that_hangs_is_given_up_and_its_rank_left_alone(
    when: When, tmp_path: Path, pids: tuple[int, ...]
) -> None:
    fake = FakeDriver(tmp_path / "book")
    held = Held(fake, pids, pids[1], when)
    driver = BoundedDriver(held)
    with pytest.raises(GangUnsettled, match="no answer within") as caught:
        move(Verb.PARK, driver, pids, pace=SOON)
    assert driver.under_way(pids[1])
    assert caught.value.states[pids[1]] is None, "it may change at any moment"
    assert [fake.state(pid) for pid in (pids[0], pids[2])] == [RUNNING] * 2
    asked = [pid for _, pid in held.asked].count(pids[1])
    if when is When.BEFORE:
        with pytest.raises(GangUnsettled, match="has not come back"):
            move(Verb.PARK, driver, pids, pace=SOON)
        assert [pid for _, pid in held.asked].count(pids[1]) == asked
    held.let.set()
    while driver.under_way(pids[1]):
        time.sleep(0.01)
    move(Verb.PARK, driver, pids)  # who was found LOCKED is not locked again
    assert [fake.state(pid) for pid in pids] == [CHECKPOINTED] * 3
    assert held.asked.count((Call.LOCK, pids[1])) == 1


def test_a_call_that_comes_back_while_its_state_is_read_is_not_taken_for_one_that_came_to_nothing(
    tmp_path: Path, pids: tuple[int, ...]
) -> None:
    class Late(Held):
        def state_and_let(self, pid: int) -> ProcessState:
            read = self._fake.state(pid)
            if pid == self._held and driver.under_way(pid):
                self.let.set()  # the state that was read is out of date when it is told
                while driver.under_way(pid):
                    time.sleep(0.01)
            return read

    late = Late(FakeDriver(tmp_path / "book"), pids, pids[1], When.BEFORE)
    late.state = late.state_and_let
    driver = BoundedDriver(late)
    move(Verb.PARK, driver, pids, pace=Pace(lock_s=0.1, settle_s=2))
    assert [driver.driver.state(pid) for pid in pids] == [CHECKPOINTED] * 3


def test_a_driver_that_does_not_say_where_a_rank_is_touches_nobody(tmp_path: Path, pids: tuple[int, ...]) -> None:
    fake = FakeDriver(tmp_path / "book")
    watched = Watched(fake, pids)
    write_script(script_of(tmp_path / "book"), [Rule("state", Do.HANG, pid=pids[1], seconds=3)])
    with pytest.raises(GangUnsettled, match="no answer within"):
        move(Verb.PARK, BoundedDriver(watched), pids, pace=Pace(read_s=0.5))
    assert watched.asked == []


def test_ranks_that_share_memory_go_one_by_one(tmp_path: Path, pids: tuple[int, ...]) -> None:
    """After a failure, the ranks that were not asked yet are spared."""
    watched = Watched(FakeDriver(tmp_path / "book"), pids)
    write_script(script_of(tmp_path / "book"), [Rule("checkpoint", Do.REFUSE, pid=pids[1])])
    with pytest.raises(GangRefused):
        move(Verb.PARK, BoundedDriver(watched), pids, pace=Pace(at_once=1))
    assert [pid for call, pid in watched.asked if call is Call.CHECKPOINT] == [pids[0], pids[1]]


def test_a_verb_that_does_not_fit_is_refused_before_anything_is_touched(tmp_path: Path, pids: tuple[int, ...]) -> None:
    watched = Watched(FakeDriver(tmp_path / "book"), pids)
    with pytest.raises(GangRefused, match="it must be CHECKPOINTED or LOCKED"):
        move(Verb.CHECKPOINT, BoundedDriver(watched), pids)
    with pytest.raises(ValueError, match="moves nothing to other GPUs"):
        move(Verb.PARK, BoundedDriver(watched), pids, gpu_maps={pids[0]: {"a": "b"}})
    with pytest.raises(ValueError, match="at least 1 ms"):
        Pace(lock_s=0)
    assert watched.asked == []


def test_a_rank_that_fails_on_the_way_back_costs_the_gang(tmp_path: Path, pids: tuple[int, ...]) -> None:
    """What went wrong first was harmless; the worse counts."""
    write_script(
        script_of(tmp_path / "book"),
        [Rule("checkpoint", Do.REFUSE, pid=pids[0]), Rule("unlock", Do.FAIL, pid=pids[0])],
    )
    with pytest.raises(GangLost, match="it is FAILED"):
        move(Verb.PARK, BoundedDriver(FakeDriver(tmp_path / "book")), pids)


def test_a_rank_whose_state_came_late_is_led_back_as_well(tmp_path: Path, pids: tuple[int, ...]) -> None:
    fake = FakeDriver(tmp_path / "book")
    write_script(
        script_of(tmp_path / "book"),
        [Rule("lock", Do.REFUSE, pid=pids[0]), Rule("state", Do.UNKNOWN, pid=pids[1], skip=1)],
    )
    with pytest.raises(GangRefused):
        move(Verb.PARK, BoundedDriver(fake), pids)
    assert [fake.state(pid) for pid in pids] == [RUNNING] * 3


def test_an_adapter_that_breaks_leaves_no_rank_locked(tmp_path: Path, pids: tuple[int, ...]) -> None:
    class Broken(Watched):
        def checkpoint(self, pid: int) -> None:
            raise OSError("no such device")

    fake = FakeDriver(tmp_path / "book")
    with pytest.raises(GangRefused, match="OSError: no such device"):
        move(Verb.PARK, BoundedDriver(Broken(fake, pids)), pids)
    assert [fake.state(pid) for pid in pids] == [RUNNING] * 3


def test_a_driver_that_lies_is_not_believed(tmp_path: Path, pids: tuple[int, ...]) -> None:
    class Lying(Watched):
        def checkpoint(self, pid: int) -> None:
            return

    fake = FakeDriver(tmp_path / "book")
    with pytest.raises(GangRefused, match="says that it is done, but it is LOCKED"):
        move(Verb.PARK, BoundedDriver(Lying(fake, pids)), pids)


def test_without_a_driver_nothing_is_touched(pids: tuple[int, ...]) -> None:
    driver = NoDriver("no CUDA driver on this machine")
    assert not driver.capabilities().can_checkpoint
    with pytest.raises(GangRefused, match=r"no CUDA driver on this machine.*Nothing was touched"):
        move(Verb.PARK, BoundedDriver(driver), pids)


def test_a_process_that_took_over_the_pid_of_a_rank_gets_no_call(tmp_path: Path, pids: tuple[int, ...]) -> None:
    watched = Watched(FakeDriver(tmp_path / "book"), pids)
    with pytest.raises(GangLost, match="the process that was meant has ended"):
        move(Verb.PARK, BoundedDriver(watched), pids, is_same=lambda pid: pid != pids[1])
    assert pids[1] not in {pid for _, pid in watched.asked}
    assert [watched.state(pid) for pid in (pids[0], pids[2])] == [RUNNING] * 2
