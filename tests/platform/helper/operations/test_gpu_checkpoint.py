"""The driver's verbs through a real helper with a fake driver: all or none, journaled, read back after a kill."""

from pathlib import Path

import pytest

from ebbtide.helper.errors import Lost, Refused, Undone
from ebbtide.helper.operations import gpu_checkpoint
from ebbtide.helper.protocol.requests import Checkpoint, DriverRequest, Lock, Restore, Unlock
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.port import GpuMap
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, script_of, write_script
from tests.platform.helper.edge_killer import workplace
from tests.platform.helper.made_up import entry_of
from tests.platform.helper.trees import Running, counting, helping, wait_until

RANKS = ["job/0", "job/1"]


def states(running: Running) -> list[str]:
    return [one.driver for one in running.helper.state(*RANKS)]


def test_a_gang_goes_off_its_gpus_and_back_all_or_none(folder: Path) -> None:
    fake = folder / "driver"
    (folder / "0").mkdir()
    (folder / "1").mkdir()
    with (
        helping(folder, None, "--fake-driver", str(fake)) as running,
        counting(folder / "0") as one,
        counting(folder / "1") as two,
    ):
        helper = running.helper
        for name, tree in zip(RANKS, (one, two), strict=True):
            running.register(tree, name)
        with pytest.raises(Undone, match="RUNNING"):
            helper.checkpoint(RANKS)  # not before all are locked
        assert states(running) == ["running", "running"]
        write_script(script_of(fake), [Rule("lock", Do.TIMEOUT, pid=two.pid)])
        with pytest.raises(Undone, match="did not end in time"):
            helper.lock(RANKS)
        assert states(running) == ["running", "running"]
        assert {w.driver for w in helper.lock(RANKS)} == {"locked"}
        assert {w.driver for w in helper.checkpoint(RANKS)} == {"checkpointed"}
        assert {w.driver for w in helper.restore(RANKS)} == {"locked"}
        assert {w.driver for w in helper.unlock(RANKS)} == {"running"}
        assert [w.driver for w in helper.lock([RANKS[0], RANKS[0]])] == ["locked", "locked"], "one that is named twice"
        helper.unlock(RANKS[:1])
        with pytest.raises(Refused, match="nobody has registered job/2"):
            helper.lock([*RANKS, "job/2"])
        write_script(script_of(fake), [Rule("lock", Do.FAIL, pid=two.pid, times=9)])
        with pytest.raises(Lost):
            helper.lock(RANKS)
        journal = (folder / "helper.sock.state" / "journal").read_text()
        assert '"step":"undone"' not in journal.splitlines()[-1] and '"read back"' in journal.splitlines()[-1]
        two.process.kill()
        two.process.wait()
        with pytest.raises(Refused, match=f"process {two.pid} of job/1 is not there"):
            helper.lock(RANKS)


class Noting(FakeDriver):
    """Notes what it is given beside the process."""

    def __init__(self, state_file: Path) -> None:
        super().__init__(state_file)
        self.given: list[object] = []

    def lock(self, pid: int, timeout_ms: int) -> None:
        self.given.append(timeout_ms)
        super().lock(pid, timeout_ms)

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        self.given.append(gpu_map)
        super().restore(pid, gpu_map)


def test_the_driver_is_asked_as_the_request_says(folder: Path) -> None:
    driver = Noting(folder / "driver")
    lock = Lock(verb="lock", names=["a"], timeout_ms=1500)
    off, on = Checkpoint(verb="checkpoint", names=["a"]), Unlock(verb="unlock", names=["a"])
    moved = Restore(verb="restore", names=["a"], gpu_map={"GPU-1": "GPU-2"})
    back = Restore(verb="restore", names=["a"])
    asked: list[DriverRequest] = [lock, off, moved, on, lock, off, back, on]
    with counting(folder) as tree:
        for place, request in enumerate(asked):
            here = workplace(folder / str(place))
            gpu_checkpoint.move_all(here, BoundedDriver(driver), request, [entry_of(tree)])
            assert here.journal.book.open_operations() == ()
            here.journal.close()
    assert driver.given == [1500, {"GPU-1": "GPU-2"}, 1500, {}]


def test_a_helper_that_died_at_the_driver_reads_back_and_does_nothing_again(folder: Path) -> None:
    fake = folder / "driver"
    write_script(script_of(fake), [Rule("lock", Do.DIE)])
    with counting(folder) as tree:
        with helping(folder, None, "--fake-driver", str(fake)) as running:
            running.register(tree, RANKS[0])
            with pytest.raises(Exception, match="did not answer"):
                running.helper.lock(RANKS[:1])
            assert running.process.wait(10) == -9
        with helping(folder, None, "--fake-driver", str(fake)) as running:
            [now] = running.helper.state(RANKS[0])
            assert now.driver == "running" and now.alive
            wait_until(lambda: running.helper.state(RANKS[0])[0].busy == "")  # it answers before it has settled that
            journal = (folder / "helper.sock.state" / "journal").read_text()
            assert '"step":"intent"' not in journal or '"read back"' in journal
            assert running.helper.lock(RANKS[:1])[0].driver == "locked"
