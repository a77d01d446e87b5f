"""kill -9 of the keeper, or of the helper, while a real image of a session is made or brought back.

Whichever it was, and when: whoever finds the slot free finds nobody on it; in the end the session runs or is whole in
its image, the helper's journal says which of it came to pass, and the session can be parked and resumed as before.
A helper killed at a dump costs no step. What it may have brought back is ended, and a killed keeper ends the tree: then
the session goes on from the newest image that stands, and every step that it repeats comes out the same.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent.slot_locks.slot_lock import probe
from ebbtide.client.messages import DesiredState
from ebbtide_train.interactive.errors import CannotRevive
from ebbtide_train.interactive.parking import helper_snapshots
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.supervision.session_states import SessionState
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.criu import criu_or_skip
from tests.train_jobs.interactive.chain import check, link
from tests.train_jobs.interactive.helped import ROOT, Running, helped
from tests.train_jobs.interactive.kept import SLOT, Kept, chain, lease, members, until

DUMP, REVIVE = ("spawned", "stopped", "sealed", "placed", "killed"), ("spawned", "restored")
POINTS = [("dump", step) for step in DUMP] + [("revive", step) for step in REVIVE]
SHORT = {
    "keeper": {("dump", "stopped"), ("revive", "spawned")},
    "helper": {("dump", "spawned"), ("dump", "sealed"), ("revive", "spawned")},
}
BALLAST_MIB = 96  # so that hashing and syncing take longer than a killed keeper's tree takes to end


def points(victim: str) -> list[object]:
    return [
        pytest.param(*point, id="-".join(point), marks=() if point in SHORT[victim] else pytest.mark.hunt)
        for point in POINTS
    ]


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(helper_snapshots, "READ_BACK_S", 120.0)  # a loaded machine takes its time to start a helper
    folder = tmp_path / "helper"
    folder.mkdir(mode=0o700)
    with helped(folder, criu_or_skip().path) as running:
        yield running


def steps_of(helper: Running, op: str) -> list[str]:
    """The journaled steps of all operations of a kind, oldest first."""
    lines = [json.loads(line.partition(" ")[2]) for line in helper.journal.read_text().split("\n")[:-1]]
    return [str(line["step"]) for line in lines if line["op"] == op]


def await_step(helper: Running, op: str, step: str, times: int) -> None:
    """Look a thousand times a second: the step after it may be a few milliseconds away."""
    deadline_s = time.monotonic() + 60.0
    while helper.journal.read_text().count(f'"op":"{op}","step":"{step}"') < times:
        assert time.monotonic() < deadline_s, f"no {op} has come to {step}: {helper.journal.read_text()[-2000:]}"
        time.sleep(0.001)


class Eye:
    """Looks all the time: on a slot that is free there is nobody."""

    def __init__(self, root: Path) -> None:
        self._root, self.seen = root, ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._closed.wait(0.02):
            # Twice: it may have been taken between two looks, and they may have ended since.
            if (there := self._on_free_slot()) & self._on_free_slot():
                self.seen = self.seen or f"the slot is free, and {there} are on it"

    def _on_free_slot(self) -> set[int]:
        return set(members(self._root)) if probe(self._root / "locks", SLOT) is None else set()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        assert not self.seen, self.seen


def command(root: Path) -> tuple[str, ...]:
    return chain(root / "chain", ballast_mib=BALLAST_MIB)


def begun(root: Path, helper: Running, epoch: int) -> Kept:
    """A keeper in this process, whose session runs on from wherever it was."""
    before = lines(root)
    one = Kept(root, command(root), epoch=epoch, snapshots=HelperSnapshots(helper.client, "s")).start()
    one.until(lambda: one.error is not None or lines(root) > before + 3, "its first steps")
    assert one.error is None, one.error
    return one


def lines(root: Path) -> int:
    return len((root / "chain").read_text().splitlines()) if (root / "chain").exists() else 0


def last_step(root: Path) -> int:
    """How far it is; every line is a true one of the chain, though some may be there twice."""
    truth, state = [], b""
    found = (root / "chain").read_text().splitlines()
    for step in range(len(found)):
        state = link(state, step)
        truth.append(f"{step} {state.hex()}")
    steps = [int(line.partition(" ")[0]) for line in found]
    assert [truth[step] for step in steps] == found, "the chain is broken"
    return steps[-1]


def parks_and_resumes(one: Kept, root: Path) -> None:
    """As if nothing had been; then it is ended, and nothing is left of it."""
    one.parks()
    assert not members(root) and one.holder() is None and len(one.place.numbers()) == 1
    before = lines(root)
    one.obeyed(one.gate.want(DesiredState.RUN, lease(90)))
    one.until(lambda: lines(root) > before, "it to go on")
    one.gate.want(DesiredState.CANCEL)
    assert one.ends().end is End.CANCELLED
    assert not members(root) and one.holder() is None and one.place.numbers() == []


@pytest.mark.parametrize(("op", "step"), points("keeper"))
def test_a_killed_keeper(tmp_path: Path, helper: Running, op: str, step: str) -> None:
    first = begun(tmp_path, helper, 1)
    first.gate.want(DesiredState.STOP)
    assert first.ends().end is End.LEFT
    (tmp_path / "orders").write_text("park" if op == "dump" else "")
    words = [str(tmp_path), json.dumps(command(tmp_path)), "- 2", str(helper.socket)]
    eye, module = Eye(tmp_path), "tests.train_jobs.interactive.kept"
    keeper = subprocess.Popen([sys.executable, "-m", module, *words], cwd=ROOT)
    try:
        await_step(helper, op, step, times=2 if op == "dump" else 1)
    finally:
        keeper.kill()
        keeper.wait()
    until(lambda: first.holder() is None, lambda: f"the slot to be free; {helper.journal.read_text()[-1500:]}")
    assert not members(tmp_path)
    stood = last_step(tmp_path)
    next_one = Kept(
        tmp_path, command(tmp_path), epoch=50, snapshots=HelperSnapshots(helper.client, "s")
    ).start()  # it may begin while the helper is still at work on what the one before has asked for
    next_one.until(lambda: next_one.error is not None or next_one.keeper.state is SessionState.RUNNING, "it to run")
    assert next_one.error is None, next_one.error
    went_on = (next_one.place.read("record") or {})["images"]
    before = lines(tmp_path)
    next_one.until(lambda: lines(tmp_path) > before, "it to go on")
    if op == "dump":
        assert steps_of(helper, "dump")[-1] == ("done" if went_on == 2 else "undone"), "the journal tells the story"
        assert steps_of(helper, "dump").count("intent") == 2
    if went_on == 2:
        assert check((tmp_path / "chain").read_text()) > stood, "no step is lost or repeated"
    else:
        assert went_on == 1 and "goes back to its last image" in str(next_one.place.read("standing"))
    parks_and_resumes(next_one, tmp_path)
    last_step(tmp_path)
    eye.close()


@pytest.mark.parametrize(("op", "step"), points("helper"))
def test_a_killed_helper(tmp_path: Path, helper: Running, op: str, step: str) -> None:
    one = begun(tmp_path, helper, 1)
    eye = Eye(tmp_path)
    if op == "revive":
        one.parks()
    number = one.gate.want(*((DesiredState.PARK,) if op == "dump" else (DesiredState.RUN, lease(2))))
    await_step(helper, op, step, times=1)
    helper.kill()
    helper.start()
    stands = (SessionState.PARKED, SessionState.RUNNING) if op == "dump" else (SessionState.RUNNING,)
    one.until(
        lambda: one.error is not None or (one.gate.heard() >= number and one.keeper.state in stands),
        "the order to be carried out, or not",
    )
    until(lambda: not helper.client.facts()["busy"], lambda: str(helper.client.facts()["busy"]))
    # A helper that starts writes its journal anew: an operation that had come to its end before is not in it any more.
    [told] = {"done", "undone"} & {*(steps_of(helper, op) or ["done"])}
    done = told == "done"
    if op == "dump" and done:
        assert one.keeper.state is SessionState.PARKED and one.place.is_complete(1)
        assert not members(tmp_path) and one.holder() is None
        one.obeyed(one.gate.want(DesiredState.RUN, lease(3)))
    elif op == "dump":
        assert one.keeper.state is SessionState.RUNNING and one.gate.reports[-1].park_refused
        assert one.holder() is not None and one.place.numbers() == []
    back = one.error is not None
    if back:  # nobody could say what came of it: what did was ended, and the image is all of it
        assert op == "revive" and isinstance(one.error, CannotRevive) and one.place.is_complete(1)
        until(lambda: one.holder() is None, lambda: "its warden to let go of the slot")
        assert not members(tmp_path)
        one = begun(tmp_path, helper, 4)
    before = lines(tmp_path)
    one.until(lambda: lines(tmp_path) > before, "it to go on")
    parks_and_resumes(one, tmp_path)
    last_step(tmp_path) if back else check((tmp_path / "chain").read_text())
    eye.close()
