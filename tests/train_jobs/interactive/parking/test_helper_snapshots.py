"""A session parked and revived by the real helper and CRIU: bit for bit, again and again, with everything killed."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.client.messages import DesiredState
from ebbtide.helper.client import Helper
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.supervision.session_states import SessionState
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.criu import criu_or_skip
from tests.train_jobs.interactive.chain import check
from tests.train_jobs.interactive.helped import Running, helped
from tests.train_jobs.interactive.kept import Kept, chain, lease, until


@pytest.fixture(scope="module")
def criu() -> Path:
    return criu_or_skip().path


@pytest.fixture(scope="module")
def helper(tmp_path_factory: pytest.TempPathFactory, criu: Path) -> Iterator[Running]:
    with helped(tmp_path_factory.mktemp("helper"), criu) as running:
        yield running


def kept(root: Path, helper: Running, steps: int, *, epoch: int = 1, code: int = 0) -> Kept:
    return Kept(
        root, chain(root / "chain", steps=steps, code=code), epoch=epoch, snapshots=HelperSnapshots(helper.client, "s")
    ).start()


def goes_on(one: Kept, root: Path, more: int = 5) -> int:
    file = root / "chain"
    one.reaches(SessionState.RUNNING)
    before = len(file.read_text().splitlines()) if file.exists() else 0
    one.until(lambda: file.exists() and len(file.read_text().splitlines()) >= before + more, "it to go on")
    return before


def test_parked_and_resumed_it_goes_on_in_the_same_memory(tmp_path: Path, helper: Running) -> None:
    one = kept(tmp_path, helper, steps=120, code=7)
    for epoch in (2, 3):
        goes_on(one, tmp_path)
        one.obeyed(one.gate.want(DesiredState.PARK))
        one.reaches(SessionState.PARKED)
        steps = check((tmp_path / "chain").read_text())
        assert one.holder() is None and not one.leader().alive() and one.place.image_bytes(epoch - 1) > 1 << 20
        assert one.place.numbers() == [epoch - 1], "older images are discarded"
        one.obeyed(one.gate.want(DesiredState.RUN, lease(epoch)))
        assert goes_on(one, tmp_path) >= steps
    verdict = one.ends()
    assert (verdict.end, verdict.code) == (End.FAILED, 7), "the end of a revived command is known"
    assert check((tmp_path / "chain").read_text()) == 120
    assert "the chain is done" in one.place.output.read_text()
    assert one.holder() is None and one.place.numbers() == []


def test_another_keeper_goes_on_from_the_image_and_its_kill_ends_nothing_but_the_session(
    tmp_path: Path, helper: Running
) -> None:
    one = kept(tmp_path, helper, steps=100_000)
    goes_on(one, tmp_path)
    one.gate.want(DesiredState.STOP)
    assert one.ends().end is End.LEFT
    saved = shutil.copy(tmp_path / "chain", tmp_path / "saved")
    two = kept(tmp_path, helper, steps=100_000, epoch=2)
    goes_on(two, tmp_path)
    assert check((tmp_path / "chain").read_text()) > check(Path(saved).read_text())
    # the leader is killed: back to the image, whose file has grown since
    os.kill(two.leader().pid, signal.SIGKILL)
    two.thread.join(20)
    assert "leader process was killed" in str(two.error) and two.holder() is None
    shutil.copy(saved, tmp_path / "chain")
    three = kept(tmp_path, helper, steps=100_000, epoch=3)
    goes_on(three, tmp_path)
    assert "goes back to its last image" in str(three.place.read("standing"))
    assert check((tmp_path / "chain").read_text()) > check(Path(saved).read_text())
    three.gate.want(DesiredState.CANCEL)
    three.ends()


def test_what_cannot_be_dumped_runs_on_and_says_what_is_in_the_way(tmp_path: Path, helper: Running) -> None:
    program = (
        "import socket, time\na = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()\n"
        "b = socket.create_connection(a.getsockname()); print('up', flush=True)\ntime.sleep(99)"
    )
    one = Kept(tmp_path, [sys.executable, "-I", "-S", "-c", program], snapshots=HelperSnapshots(helper.client, "s"))
    one.start().reaches(SessionState.RUNNING)
    one.until(lambda: "up" in one.place.output.read_text(), "its sockets")
    one.obeyed(one.gate.want(DesiredState.PARK))
    one.until(lambda: "TCP connection" in one.gate.reports[-1].park_refused, "the reason")
    assert one.leader().alive() and one.keeper.state is SessionState.RUNNING
    one.gate.want(DesiredState.CANCEL)
    one.ends()


def test_without_a_helper_it_runs_and_cannot_be_parked(tmp_path: Path) -> None:
    snapshots = HelperSnapshots(Helper(tmp_path / "nobody.sock"), "s")
    one = Kept(tmp_path, chain(tmp_path / "chain"), snapshots=snapshots).start()
    one.reaches(SessionState.RUNNING)
    until(lambda: "no helper answers" in str(one.place.read("standing")))
    one.obeyed(one.gate.want(DesiredState.PARK))
    one.until(lambda: "no helper answers" in one.gate.reports[-1].park_refused, "the reason")
    one.gate.want(DesiredState.CANCEL)
    one.ends()
