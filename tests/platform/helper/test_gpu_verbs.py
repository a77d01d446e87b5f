"""The driver's verbs through a real helper with a fake driver: all or none, journaled, read back after a kill."""

from pathlib import Path

import pytest

from ebbtide.helper.errors import Lost, Refused, Undone
from ebbtide.snapshot.driver.fake_script import Do, Rule, script_of, write_script
from tests.platform.helper.trees import Running, counting, helping

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
        with pytest.raises(Refused, match="nobody has registered job/2"):
            helper.lock([*RANKS, "job/2"])
        write_script(script_of(fake), [Rule("lock", Do.FAIL, pid=two.pid, times=9)])
        with pytest.raises(Lost):
            helper.lock(RANKS)
        two.process.kill()
        two.process.wait()
        with pytest.raises(Refused, match=f"process {two.pid} of job/1 is not there"):
            helper.lock(RANKS)


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
            journal = (folder / "helper.sock.state" / "journal").read_text()
            assert '"step":"intent"' not in journal or '"read back"' in journal
            assert running.helper.lock(RANKS[:1])[0].driver == "locked"
