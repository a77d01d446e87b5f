"""Of a tree, the processes that use the GPU are taken off it and put back, whoever was registered; all or none."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.helper.errors import HelperError, Lost, OutcomeUnknown, Refused, Undone
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.workload_states import Standing
from ebbtide.helper.operations import gpu_processes
from ebbtide.helper.operations.gpu_checkpoint import move_all, stand
from ebbtide.helper.operations.gpu_processes import UNUSED, family, look_at_gpus, word_of
from ebbtide.helper.protocol.requests import Checkpoint, DriverRequest, Lock, Restore, Unlock
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.errors import DriverUnknown
from ebbtide.snapshot.driver.port import GpuMap
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.system.process import boot_id, started_ticks
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, script_of, write_script
from tests.platform.helper.edge_killer import workplace
from tests.platform.helper.trees import Family, gpu_family, helping, wait_until

NAME = "session/a"


def request(verb: str) -> DriverRequest:
    kinds: dict[str, type[DriverRequest]] = {
        "lock": Lock, "checkpoint": Checkpoint, "restore": Restore, "unlock": Unlock
    }  # fmt: skip
    return kinds[verb](verb=verb, names=[NAME])  # type: ignore[arg-type]


def entry_of(tree: Family) -> Entry:
    return Entry(NAME, tree.pid, tree.started, boot_id(), 1, os.geteuid(), Standing.LIVE)


def calls(fake: Path) -> list[tuple[str, int]]:
    with open_state(fake) as book:
        return [(call, pid) for call, pid in book.calls]


def struck(fake: Path) -> int:
    """How often the script's first rule did."""
    with open_state(fake) as book:
        return book.seen.get("0", 0)


def test_every_process_of_a_tree_that_uses_the_gpu_leaves_it_and_no_other_is_asked(folder: Path) -> None:
    fake = folder / "driver"
    with (
        helping(folder, None, "--fake-driver", str(fake)) as running,
        gpu_family(fake, "idle", "user", "below") as tree,
    ):
        helper = running.helper
        running.register(tree, NAME)
        assert helper.state(NAME)[0].driver == "running"
        with pytest.raises(Undone, match="RUNNING"):
            helper.checkpoint([NAME])  # not before all are locked
        assert helper.lock([NAME])[0].driver == "locked"
        assert helper.checkpoint([NAME])[0].driver == "checkpointed"
        made = calls(fake)
        assert sorted(made[:2]) == sorted(("lock", pid) for pid in tree.users), "all before any is taken off"
        assert sorted(made[2:]) == sorted(("checkpoint", pid) for pid in tree.users)
        assert helper.restore([NAME])[0].driver == "locked"
        assert helper.unlock([NAME])[0].driver == "running"
        assert {pid for _, pid in calls(fake)} == set(tree.users)


def test_a_tree_without_a_process_that_uses_the_gpu_has_nothing_to_be_taken_off(folder: Path) -> None:
    fake = folder / "driver"
    with helping(folder, None, "--fake-driver", str(fake)) as running, gpu_family(fake, "idle") as tree:
        running.register(tree, NAME)
        assert running.helper.state(NAME)[0].driver == UNUSED
        with pytest.raises(Refused, match=f"no process of {NAME} uses a GPU.*INVALID_VALUE"):
            running.helper.lock([NAME])
        journal = (folder / "helper.sock.state" / "journal").read_text()
        assert '"op":"lock"' not in journal, "refused before anything was begun"


@pytest.mark.parametrize("do", [Do.TIMEOUT, Do.REFUSE])
def test_one_that_cannot_be_locked_keeps_the_whole_tree_where_it_is(folder: Path, do: Do) -> None:
    fake = folder / "driver"
    with helping(folder, None, "--fake-driver", str(fake)) as running, gpu_family(fake, "user", "user") as tree:
        running.register(tree, NAME)
        write_script(script_of(fake), [Rule("lock", do, pid=tree.users[1])])
        with pytest.raises(Undone):
            running.helper.lock([NAME])
        assert running.helper.state(NAME)[0].driver == "running"
        assert ("checkpoint", tree.users[0]) not in calls(fake)


def test_a_helper_killed_half_way_leaves_a_tree_that_the_next_one_leads_on(folder: Path) -> None:
    fake = folder / "driver"
    with gpu_family(fake, "user", "user") as tree:
        write_script(script_of(fake), [Rule("lock", Do.HANG, pid=tree.users[1], seconds=60.0)])
        with helping(folder, None, "--fake-driver", str(fake)) as running:
            running.register(tree, NAME)
            asking = Asking(lambda: running.helper.lock([NAME]))
            wait_until(lambda: ("lock", tree.users[0]) in calls(fake))
            wait_until(lambda: struck(fake) == 1)  # or else it is the next helper whom it strikes
            running.process.kill()
            running.process.wait()
            with pytest.raises(OutcomeUnknown):
                asking.result()
        with helping(folder, None, "--fake-driver", str(fake)) as running:
            wait_until(lambda: running.helper.state(NAME)[0].busy == "")
            one, two = tree.users
            assert running.helper.state(NAME)[0].driver == f"mixed: {one} locked, {two} running"
            assert f'"state":"mixed: {one} locked' in (folder / "helper.sock.state" / "journal").read_text()
            assert running.helper.lock([NAME])[0].driver == "locked"
            assert calls(fake).count(("lock", one)) == 1, "what was done is not done again"


class Asking:
    """A question in a thread."""

    def __init__(self, ask: Callable[[], object]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._future = ThreadPoolExecutor(1).submit(ask)

    def result(self) -> object:
        return self._future.result(30)


class Meddled(FakeDriver):
    """Something happens beside a call: ``at[call]`` is done once that call has been made, each time."""

    def __init__(self, state_file: Path) -> None:
        super().__init__(state_file)
        self.at: dict[str, Callable[[int], object]] = {}

    def _meddle(self, call: str, pid: int) -> None:
        if call in self.at:
            self.at[call](pid)

    def lock(self, pid: int, timeout_ms: int) -> None:
        super().lock(pid, timeout_ms)
        self._meddle("lock", pid)

    def checkpoint(self, pid: int) -> None:
        super().checkpoint(pid)
        self._meddle("checkpoint", pid)

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        super().restore(pid, gpu_map)
        self._meddle("restore", pid)


class Bench:
    """A tree, a driver that is meddled with, and what a helper would do, in this process."""

    def __init__(self, folder: Path, tree: Family) -> None:
        self.tree, self.fake = tree, Meddled(folder / "driver")
        self._driver, self.place = BoundedDriver(self.fake), workplace(folder)

    def ask(self, *verbs: str) -> None:
        for verb in verbs:
            move_all(self.place, self._driver, request(verb), [entry_of(self.tree)])
            assert self.place.journal.book.open_operations() == ()

    def word(self) -> str:
        return stand(self._driver, [entry_of(self.tree)])[NAME]

    def states(self) -> list[ProcessState]:
        return [self.fake.state(pid) for pid in self.tree.users]


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    with gpu_family(folder / "driver", "user", "user") as tree:
        yield Bench(folder, tree)


def once(do: Callable[[], object]) -> Callable[[int], object]:
    left = [do]
    return lambda _pid: left.pop()() if left else None


def test_what_begins_to_use_the_gpu_during_the_lock_is_locked_too(bench: Bench) -> None:
    bench.fake.at["lock"] = once(lambda: bench.tree.more("user"))
    bench.ask("lock")
    assert bench.states() == [ProcessState.LOCKED] * 3
    bench.ask("checkpoint", "restore", "unlock")
    assert bench.word() == "running"


def test_what_begins_to_use_the_gpu_while_the_others_leave_it_brings_them_back(bench: Bench) -> None:
    bench.ask("lock")
    bench.fake.at["checkpoint"] = once(lambda: bench.tree.more("user"))
    with pytest.raises(Undone, match="RUNNING"):
        bench.ask("checkpoint")
    assert bench.states() == [ProcessState.LOCKED, ProcessState.LOCKED, ProcessState.RUNNING], "as it was asked for"
    assert bench.place.journal.book.open_operations() == ()


def test_others_that_cannot_come_back_then_are_said_to_be_off(bench: Bench) -> None:
    bench.ask("lock")
    bench.fake.at["checkpoint"] = once(lambda: bench.tree.more("user"))
    write_script(script_of(bench.fake._file), [Rule("restore", Do.REFUSE, pid=bench.tree.users[0], times=9)])
    with pytest.raises(OutcomeUnknown):
        bench.ask("checkpoint")
    assert ProcessState.CHECKPOINTED in bench.states()


def test_a_tree_that_does_not_come_to_rest_is_left_running(bench: Bench) -> None:
    bench.fake.at["lock"] = lambda _pid: bench.tree.more("user")
    with pytest.raises(Undone, match="again and again"):
        bench.ask("lock")
    assert bench.word() == "running"


def test_one_that_ends_meanwhile_is_left_out(bench: Bench) -> None:
    one, two = bench.tree.users

    def end_two() -> None:
        os.kill(two, signal.SIGKILL)
        wait_until(lambda: started_ticks(two) is None)

    bench.fake.at["lock"] = once(end_two)
    bench.ask("lock", "checkpoint")
    assert bench.fake.state(one) is ProcessState.CHECKPOINTED
    bench.tree.more("user")  # and one that has begun since is no reason not to bring it back
    bench.ask("restore", "unlock")
    assert bench.word() == "running"


def test_a_tree_whose_processes_have_all_ended_is_brought_back_as_nothing(bench: Bench) -> None:
    bench.ask("lock", "checkpoint")
    for pid in bench.tree.users:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bench.word() == UNUSED)
    bench.ask("restore", "unlock")


def test_a_root_that_ends_meanwhile_is_a_loss(bench: Bench) -> None:
    def end_root() -> None:
        bench.tree.process.kill()
        bench.tree.process.wait()

    bench.fake.at["lock"] = once(end_root)
    with pytest.raises(Lost, match="root of its tree has ended"):
        bench.ask("lock")
    assert bench.word() == ""
    with pytest.raises(Refused, match="is not there"):
        bench.ask("unlock")


def test_a_process_with_cudas_device_that_the_driver_does_not_know_is_not_guessed_at(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fork of one that uses CUDA: nobody knows what it keeps on the GPU."""
    device = Path(f"/proc/{bench.tree.pid}/fd/0").readlink()  # what every process of the tree has open
    monkeypatch.setattr(gpu_processes, "CUDA_DEVICE", str(device))
    with pytest.raises(Refused, match=f"process {bench.tree.pid} has .* open, and the driver does not know it"):
        bench.ask("lock")
    assert bench.word() == "running"


def test_a_process_that_took_over_a_pid_is_not_of_the_tree(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the call: the start times are compared right before each."""
    two, rows = bench.tree.users[1], gpu_processes._rows

    def older() -> Iterator[tuple[int, int, int]]:
        for pid, parent, started in rows():
            yield pid, parent, started - (pid == two)

    monkeypatch.setattr(gpu_processes, "_rows", older)
    with pytest.raises(HelperError):
        bench.ask("lock")
    assert ("lock", two) not in calls(bench.fake._file)


def test_the_helper_never_freezes_itself() -> None:
    started = started_ticks(os.getpid())
    assert started is not None
    entry = Entry(NAME, os.getpid(), started, boot_id(), 1, os.geteuid(), Standing.LIVE)
    assert os.getpid() not in family(entry)


def test_of_an_entry_of_another_boot_there_is_nobody(bench: Bench) -> None:
    entry = entry_of(bench.tree)
    stranger = Entry(NAME, entry.pid, entry.started, "another boot", 1, entry.uid, Standing.LIVE)
    (tree,) = look_at_gpus(BoundedDriver(bench.fake), [stranger])
    assert tree.is_gone and tree.users == ()


def test_one_word_says_where_a_tree_is() -> None:
    running, locked, failed = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.FAILED
    unknown = DriverUnknown("state", 2, "no answer", "read back")
    assert word_of({}) == UNUSED
    assert word_of({1: locked, 2: locked}) == "locked"
    assert word_of({1: running, 2: locked}) == "mixed: 1 running, 2 locked"
    assert word_of({1: running, 2: failed}) == "failed"
    assert word_of({1: failed, 2: unknown}).startswith("unknown: state of process 2")
    assert word_of({1: None}) == "unknown"


def test_a_tree_that_came_onto_other_gpus_in_part_is_not_moved_again(bench: Bench) -> None:
    """The same map would put those that have moved onto the GPU that they left, which may be somebody else's."""
    bench.ask("lock", "checkpoint")
    write_script(script_of(bench.fake._file), [Rule("restore", Do.REFUSE, pid=bench.tree.users[1])])
    moving = Restore(verb="restore", names=[NAME], gpu_map={"a": "b"})
    with pytest.raises(Lost, match="which no map puts right"):
        move_all(bench.place, BoundedDriver(bench.fake), moving, [entry_of(bench.tree)])


def test_operations_on_a_tree_tell_whom_they_were_about(bench: Bench, folder: Path) -> None:
    bench.ask("lock")
    text = (folder / "state" / "journal").read_text()
    assert all(f"[{pid}," in text for pid in bench.tree.users)
