"""Lending host memory: never more than the budget, and nothing that counts is ever taken back."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ebbtide.agent.host_memory import region_lender as hosting_module
from ebbtide.agent.host_memory.region_lender import IDLE_S, MISSING_S, RegionLender
from ebbtide.snapshot.errors import HostMemoryShort
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.snapshot.regions.region_takeover import read_region
from ebbtide.snapshot.regions.region_view import RegionView, look
from tests.examples import examples

PAGE = 4096
A0 = RegionKey("a", 1, 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hosting(tmp_path: Path, clock: Clock) -> RegionLender:
    made = RegionLender(tmp_path / "u" / "pool" / "machine", clock_s=clock)
    made.set_budget(10 * PAGE)
    return made


def fill(path: Path, note: bytes = b"n") -> Region:
    region = Region.open(path)
    region.begin()
    region.bytes.fill_(5)
    region.seal(note)
    return region


def test_nothing_is_lent_before_the_budget_is_known_nor_beyond_it(tmp_path: Path) -> None:
    hosting = RegionLender(tmp_path / "u" / "pool" / "machine", available=lambda: None)
    assert (hosting.regions(), hosting.sweep([]), hosting.settle("a", 1)) == ([], [], []), "its folder is not there"
    with pytest.raises(HostMemoryShort, match="not told"):
        hosting.lend(A0, PAGE)
    hosting.set_budget(3 * PAGE)
    hosting.lend(A0, 2 * PAGE)
    with pytest.raises(
        HostMemoryShort, match=r"rank 0 of b needs 8192 bytes.*lends 12288 in all and 8192 are lent \(a"
    ):
        hosting.lend(RegionKey("b", 1, 0), PAGE + 1)
    hosting.lend(RegionKey("b", 1, 0), PAGE)


@pytest.mark.proves("a folder of another user is refused")
def test_the_folder_is_private_and_nobody_elses(hosting: RegionLender, tmp_path: Path) -> None:
    path = hosting.lend(A0, PAGE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {folder.stat().st_mode & 0o777 for folder in (path.parent, *path.parents[1:3])} == {0o700}
    os.chown(tmp_path / "u", 65534, 65534)
    with pytest.raises(HostMemoryShort, match="not this user's own"):
        hosting.lend(RegionKey("b", 1, 0), PAGE)


@pytest.mark.proves("a folder that others may write to is refused")
def test_a_folder_that_others_may_write_to_is_refused(hosting: RegionLender) -> None:
    folder = hosting.lend(A0, PAGE).parent
    folder.parent.chmod(0o770)
    with pytest.raises(HostMemoryShort, match=r"others may write to .*chmod 700"):
        hosting.lend(RegionKey("b", 1, 0), PAGE)


@pytest.mark.proves("a link in place of a folder is refused")
def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "u" / "pool").mkdir(parents=True)
    (tmp_path / "u" / "pool" / "machine").symlink_to(tmp_path / "elsewhere")
    hosting = RegionLender(tmp_path / "u" / "pool" / "machine")
    hosting.set_budget(PAGE)
    with pytest.raises(HostMemoryShort, match="machine is not this user's own"):
        hosting.lend(A0, PAGE)


def test_a_rank_that_asks_again_gets_what_it_had_or_has_it_replaced(hosting: RegionLender) -> None:
    first = hosting.lend(A0, 4 * PAGE)
    assert look(hosting.lend(A0, PAGE)).size_bytes == 4 * PAGE, "the same"
    assert hosting.lend(A0, 8 * PAGE) == first
    assert look(first).size_bytes == 8 * PAGE, "the other was too small; ten pages are lent in all"
    later = hosting.lend(RegionKey("a", 2, 0), 8 * PAGE)
    assert [view.path for view in hosting.regions()] == [later]


def test_what_counts_is_not_given_up_for_a_later_gang(hosting: RegionLender) -> None:
    fill(hosting.lend(A0, 4 * PAGE)).close()
    hosting.lend(RegionKey("a", 2, 0), 4 * PAGE)
    assert read_region(next(view.path for view in hosting.regions() if view.key == A0)).note == b"n"
    with pytest.raises(HostMemoryShort, match="what is in it counts"):
        hosting.lend(A0, PAGE)


def test_a_new_agent_finds_what_was_lent_before(hosting: RegionLender, tmp_path: Path) -> None:
    region = fill(hosting.lend(A0, 4 * PAGE))
    (tmp_path / "u/pool/machine" / "a.1.0.making").write_bytes(b"its agent was killed here")
    again = RegionLender(tmp_path / "u" / "pool" / "machine")
    again.set_budget(5 * PAGE)
    assert again.sweep(["a"]) == []
    assert [(view.key, view.state, view.borrower_lives) for view in again.regions()] == [(A0, RegionState.FULL, True)]
    assert sorted(path.name for path in (tmp_path / "u/pool/machine").iterdir()) == ["a.1.0.region"]
    with pytest.raises(HostMemoryShort):
        again.lend(RegionKey("b", 1, 0), 2 * PAGE)
    region.close()


def test_what_nobody_can_need_is_taken_back_after_a_while_and_what_counts_only_with_its_job(
    hosting: RegionLender, clock: Clock
) -> None:
    fill(hosting.lend(A0, PAGE)).close()
    hosting.lend(RegionKey("a", 1, 1), PAGE)  # nobody has opened it yet
    begun = Region.open(hosting.lend(RegionKey("a", 1, 2), PAGE))
    begun.begin()
    begun.close()
    assert hosting.sweep(["a"]) == []
    clock.now_s += IDLE_S
    assert hosting.sweep(["a"]) == ["a.1.1.region", "a.1.2.region"]
    for _ in range(3):
        clock.now_s += MISSING_S
        assert hosting.sweep(["a"]) == []
    assert hosting.sweep([]) == []
    clock.now_s += MISSING_S / 2
    assert hosting.sweep(["a"]) == [], "the arbiter knows it after all"
    clock.now_s += MISSING_S / 2
    assert hosting.sweep([]) == [], "that counts from the beginning again"
    clock.now_s += MISSING_S
    assert hosting.sweep([]) == ["a.1.0.region"]


def test_only_what_was_idle_all_the_time_is_taken_back(hosting: RegionLender, clock: Clock) -> None:
    """Memory that is asked for again, was borrowed in between, or held what counts, has its time from then on."""
    again, borrowed, counted = (RegionKey("a", 1, rank) for rank in range(3))
    hosting.lend(again, PAGE)
    path = hosting.lend(borrowed, PAGE)
    full = hosting.lend(counted, PAGE)
    assert hosting.sweep(["a"]) == []
    clock.now_s = IDLE_S / 2
    with_region = Region.open(path)
    fill(full).close()
    assert hosting.sweep(["a"]) == []
    with_region.close()
    clock.now_s = IDLE_S
    hosting.lend(again, PAGE)
    emptied = Region.open(full)
    emptied.clear()
    emptied.close()
    assert hosting.sweep(["a"]) == []
    clock.now_s = 2 * IDLE_S
    assert hosting.sweep(["a"]) == ["a.1.0.region", "a.1.1.region", "a.1.2.region"]


def test_memory_of_a_borrower_who_lives_is_never_taken_back(hosting: RegionLender, clock: Clock) -> None:
    region = Region.open(hosting.lend(A0, PAGE))
    hosting.sweep([])
    clock.now_s += 2 * MISSING_S
    assert hosting.sweep([]) == [] and hosting.settle("a", 9) == []
    region.close()
    assert hosting.settle("a", 0) == []
    assert hosting.settle("b", 9) == []
    assert hosting.settle("a", 1) == ["a.1.0.region"]


def test_garbage_in_the_folder_hinders_nobody_and_is_told_once(
    hosting: RegionLender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hosting.lend(A0, PAGE).parent
    (folder / "x.1.0.region").write_bytes(os.urandom(5000))
    (folder / "y.1.0.region").symlink_to("/etc/passwd")
    (folder / "z.1.0.region").mkdir()
    (folder / "note.txt").write_text("hello")
    for _ in range(2):
        assert [view.key for view in hosting.regions()] == [A0]
    assert hosting.sweep(["a"]) == []
    assert len(caplog.records) == 3

    def gone(path: Path) -> RegionView:
        raise FileNotFoundError(path)

    monkeypatch.setattr(hosting_module, "look", gone)
    assert hosting.regions() == [] and len(caplog.records) == 3, "what goes meanwhile is not worth a word"


class Lending(RuleBasedStateMachine):
    """Any order of lending, filling, dying, settling and sweeping."""

    def __init__(self) -> None:
        super().__init__()
        self.tmp = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.hosting = RegionLender(Path(self.tmp.name) / "u" / "p" / "m", clock_s=self.clock)
        self.hosting.set_budget(6 * PAGE)
        self.open: dict[RegionKey, Region] = {}
        self.count: set[RegionKey] = set()

    keys = st.builds(RegionKey, st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 1))

    @rule(key=keys, size=st.integers(1, 4))
    def borrow(self, key: RegionKey, size: int) -> None:
        try:
            path = self.hosting.lend(key, size * PAGE)
        except HostMemoryShort:
            return
        assert key not in self.open and key not in self.count
        self.open[key] = Region.open(path)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        region = self.open[key]
        deed = data.draw(st.sampled_from(["begin", "seal", "clear", "die"]))
        if deed == "begin":
            region.begin()
            self.count.discard(key)
        elif deed == "seal":
            region.begin()
            region.seal(b"")
            self.count.add(key)
        elif deed == "clear":
            region.clear()
            self.count.discard(key)
        else:
            self.open.pop(key).close()

    @rule(key=keys)
    def settle(self, key: RegionKey) -> None:
        gone = {k for k in self.count if k.job == key.job and k.lease_epoch <= key.lease_epoch and k not in self.open}
        self.hosting.settle(key.job, key.lease_epoch)
        self.count -= gone

    @rule(wait_s=st.sampled_from([1.0, IDLE_S]))
    def sweep(self, wait_s: float) -> None:
        self.clock.now_s += wait_s
        self.hosting.sweep(["a", "b"])

    @invariant()
    def what_counts_is_there_and_the_budget_holds(self) -> None:
        views = {view.key: view for view in self.hosting.regions()}
        assert {key for key, view in views.items() if view.state is RegionState.FULL} == self.count
        assert set(self.open) <= set(views)
        assert sum(view.size_bytes for view in views.values()) <= 6 * PAGE

    def teardown(self) -> None:
        for region in self.open.values():
            region.close()
        self.tmp.cleanup()


Lending.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
TestLending = Lending.TestCase
