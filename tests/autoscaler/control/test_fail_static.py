"""Promise 8 on a real filesystem that hangs, fills up, turns read-only or disappears, at every step of the ledger.

What is asked each time: the arbiter answers at once and says why it stands still and since when; what it tells is what
the ledger had confirmed; it goes on by itself; nothing that was confirmed is lost and nothing is there twice.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.messages import AgentReport, RankPhase, RankReport
from ebbtide.ledger import epoch_file, ledger_files
from ebbtide.ledger.reader import list_epochs, replay
from ebbtide.pool.events import NodeFound
from ebbtide.pool.ids import NodeId
from ebbtide_autoscaler.actor import arbiter as arbiter_module
from ebbtide_autoscaler.actor.arbiter import Arbiter
from ebbtide_autoscaler.control import loop as loop_module
from ebbtide_autoscaler.journal import ledger_io, ledger_session, records
from ebbtide_autoscaler.journal.records import recover
from tests.autoscaler.real_disk import CannotMount, RealDisk
from tests.builders.arbiter import NoCluster, NoJobs

PATIENCE_S = 0.3  # instead of 5 s, for the test's sake
SOON_S = 20.0  # this machine may be busy
AT_ONCE_S = 5.0


class NoServe:
    """Nothing is served here."""

    async def stop(self) -> None:
        """Nothing to stop."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    try:
        made = RealDisk.make(tmp_path)
    except CannotMount as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.give_back()


Start = Callable[[], Arbiter]


@pytest.fixture
def start(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts arbiters, each in the place of the one before."""
    monkeypatch.setattr(loop_module, "load_serve", NoServe)
    monkeypatch.setattr(loop_module, "load_train", lambda _: NoJobs())
    monkeypatch.setattr(loop_module, "ClusterWatch", NoCluster)
    monkeypatch.setattr(loop_module, "FenceSync", NoCluster)
    monkeypatch.setattr(loop_module, "cluster_name", lambda: "one cluster")
    monkeypatch.setattr(ledger_session, "LEDGER_DEADLINE_S", PATIENCE_S)
    monkeypatch.setattr(ledger_session, "REOPEN_S", 0.1)
    monkeypatch.setattr(ledger_io, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(arbiter_module, "start_beating", lambda *_, **__: None)
    started: list[Arbiter] = []

    def begin() -> Arbiter:
        started.append(Arbiter("p", str(disk.path), str(tmp_path / "node" / "slots")))
        return started[-1]

    yield begin
    disk.give_back()
    for one in started:
        one._loop._stopped = True


def status(arbiter: Arbiter) -> dict[str, Any]:
    found: dict[str, Any] = arbiter.status()["arbiter"]
    return found


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.02)


def note(arbiter: Arbiter, node: str) -> None:
    """Submit a fact."""
    arbiter._loop.inbox.submit(NodeFound(NodeId(node), 1))


def knows(arbiter: Arbiter, *nodes: str) -> None:
    until(lambda: set(arbiter._loop.published.state.nodes) == set(nodes), lambda: f"not {nodes}: {status(arbiter)}")


def stands_still(arbiter: Arbiter, why: str, *known: str) -> None:
    """It says so, at once and with a time, and tells what was confirmed before."""
    until(lambda: why in status(arbiter)["frozen"], lambda: f"never said {why!r}: {status(arbiter)}")
    began_s = time.monotonic()
    found = status(arbiter)
    assert found["frozen_by"] == "ledger" and 0 <= time.time() - found["frozen_since_at_s"] < SOON_S
    arbiter.report_agent(AgentReport("a", "boot", {}, 1.0))
    rank = RankReport(
        job="j",
        incarnation="i",
        rank=0,
        world=1,
        pid=1,
        node="a",
        lease_epoch=1,
        directive=0,
        phase=RankPhase.RUNNING,
        step=1,
        durable_step=0,
    )
    assert arbiter.report_rank(rank) is None
    assert set(arbiter._loop.published.state.nodes) == set(known)
    assert time.monotonic() - began_s < AT_ONCE_S


def moves_again(arbiter: Arbiter, disk: RealDisk, *nodes: str) -> None:
    """All that was submitted is there, once, in memory and on the disk; and the next thing works."""
    knows(arbiter, *nodes)
    note(arbiter, "last")
    knows(arbiter, *nodes, "last")
    until(lambda: status(arbiter)["frozen"] == "", lambda: f"still frozen: {status(arbiter)}")
    assert recover(disk.path / "ledger").state == arbiter._loop.published.state
    bodies = Counter(str(r.payload["body"]) for r in replay(disk.path / "ledger") if r.payload["type"] == "event")
    assert set(bodies.values()) == {1} and len(bodies) == len(nodes) + 1
    assert arbiter.hello() is not None


@pytest.mark.proves(
    "a directory that hangs is told of",
    "a person is told that the ledger is not open",
    "the arbiter goes on while a directory hangs",
    "the epoch is 0 before the ledger is open",
)
def test_an_arbiter_that_starts_while_the_directory_hangs_comes_up_and_goes_on_when_it_is_back(
    start: Start, disk: RealDisk
) -> None:
    first = start()
    note(first, "a")
    knows(first, "a")
    first._loop.ledger._journal.close()
    disk.freeze()
    arbiter = start()
    stands_still(arbiter, "has not answered")
    assert arbiter.hello() is None and status(arbiter)["epoch"] == 0
    with pytest.raises(ValueError, match=r"not read its ledger yet.*has not answered"):
        arbiter.freeze("maintenance")
    time.sleep(3 * PATIENCE_S)
    assert status(arbiter)["frozen_by"] == "ledger"
    disk.thaw()
    moves_again(arbiter, disk, "a")


def test_a_directory_that_hangs_at_the_very_first_start_is_waited_for(start: Start, disk: RealDisk) -> None:
    disk.freeze()
    arbiter = start()
    stands_still(arbiter, "has not answered")
    disk.thaw()
    moves_again(arbiter, disk)


@pytest.mark.proves("others hear only of what the ledger has confirmed", "the tick does not wait in silence")
def test_an_append_that_hangs_stops_all_moves_until_it_is_through(start: Start, disk: RealDisk) -> None:
    arbiter = start()
    note(arbiter, "a")
    knows(arbiter, "a")
    disk.freeze()
    hung_s = time.time()
    note(arbiter, "b")
    stands_still(arbiter, "has not answered", "a")
    assert abs(status(arbiter)["frozen_since_at_s"] - hung_s) < 2.0
    note(arbiter, "c")
    time.sleep(2 * PATIENCE_S)
    stands_still(arbiter, "has not answered", "a")
    disk.thaw()
    moves_again(arbiter, disk, "a", "b", "c")


@pytest.mark.proves("what was submitted while the ledger failed is not lost")
@pytest.mark.parametrize("trouble", ["hangs", "is read-only"])
def test_a_directory_that_fails_in_a_snapshot_costs_nothing(
    start: Start, disk: RealDisk, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = start()
    note(arbiter, "a")
    knows(arbiter, "a")

    def create(path: Path) -> int:
        monkeypatch.setattr(epoch_file, "create", ledger_files.create)
        if trouble == "hangs":
            disk.freeze()
            return ledger_files.create(path)
        made = ledger_files.create(path)
        disk.turn_read_only()
        return made

    note(arbiter, "b")
    knows(arbiter, "a", "b")
    monkeypatch.setattr(epoch_file, "create", create)
    arbiter._loop.ledger._journal._snapshot_bytes = 0  # the next tick makes one
    why = {"hangs": "has not answered", "is read-only": "errno 30"}[trouble]
    stands_still(arbiter, why, "a", "b")
    note(arbiter, "c")
    disk.thaw()
    if trouble == "is read-only":
        disk.mount_again()
    moves_again(arbiter, disk, "a", "b", "c")


@pytest.mark.proves("the directory is looked at before a file is made there")
def test_a_full_directory_stops_all_moves_and_gathers_no_files_until_there_is_room(
    start: Start, disk: RealDisk
) -> None:
    arbiter = start()
    note(arbiter, "a")
    knows(arbiter, "a")
    disk.fill()
    for number in range(200):  # the file's last block has room for some
        note(arbiter, f"b{number}")
    until(lambda: "errno 28" in status(arbiter)["frozen"], lambda: "never full")
    stands_still(arbiter, "errno 28", *arbiter._loop.published.state.nodes)
    before = list_epochs(disk.path / "ledger")
    time.sleep(1.0)
    assert list_epochs(disk.path / "ledger") == before, "each try left a file"
    disk.make_room()
    moves_again(arbiter, disk, "a", *(f"b{number}" for number in range(200)))


def test_a_directory_that_turns_read_only_stops_all_moves_until_it_is_mounted_again(
    start: Start, disk: RealDisk
) -> None:
    arbiter = start()
    note(arbiter, "a")
    knows(arbiter, "a")
    disk.turn_read_only()
    note(arbiter, "b")
    stands_still(arbiter, "errno 30", "a")
    disk.mount_again()
    moves_again(arbiter, disk, "a", "b")


def begun(disk: RealDisk) -> list[Path]:
    """What was made on it, but for probes: a look may be under way."""
    return [one for one in disk.path.iterdir() if not one.name.startswith(".ebbtide-probe")]


def test_a_directory_that_disappears_is_not_begun_anew(start: Start, disk: RealDisk) -> None:
    """What lies under the mount point looks like an empty shared directory; a pool begun there would forget all."""
    arbiter = start()
    note(arbiter, "a")
    knows(arbiter, "a")
    disk.take_away()
    note(arbiter, "b")
    stands_still(arbiter, "holds no ledger", "a")
    assert begun(disk) == []
    again = start()
    stands_still(again, "holds no ledger")
    assert begun(disk) == []
    arbiter._loop._stopped = True
    time.sleep(1.0)  # its last try is over
    disk.mount()
    moves_again(again, disk, "a", "b")  # what was written and not confirmed may count


def test_a_start_that_hangs_for_long_takes_one_thread_and_not_one_each_try(start: Start, disk: RealDisk) -> None:
    disk.freeze()
    arbiter = start()
    stands_still(arbiter, "has not answered")
    before = threading.active_count()
    time.sleep(5 * PATIENCE_S)
    assert threading.active_count() <= before
    disk.thaw()
    moves_again(arbiter, disk)


def test_the_bounds_of_the_real_thing_are_in_force() -> None:
    assert records.SNAPSHOT_BYTES == 8 << 20
    assert ledger_session.LEDGER_DEADLINE_S == ledger_io.PATIENCE_S == 5.0
