"""Kills a helper's work at one edge after another, and lets a next helper settle it. Run as a program.

usage: edge_killer.py FOLDER CRIU POINT...     prints one JSON line for each point: what became of it

A point is OPERATION/PLACE. Places: ``before STEP`` and ``after STEP`` of a line in the journal, ``at work`` right after
CRIU got its word, and ``call N``: before the N-th change of the disk (prints "too late" where there are fewer).
Operations: dump, revive, discard; ``bad dump`` and ``bad revive``, where CRIU fails; ``full dump``, where the disk is
full when the image is sealed; ``taken dump``, where something appears at the image's name; ``unsure dump``, where
the rename happens and its sync fails (the helper then ends by itself: place ``itself``); ``roomless dump`` and
``roomless revive``, where no folder can be made; ``stuck discard``, where nothing can be removed.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.helper.criu import criu_program
from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.criu.image import COMMIT, check_files, read_manifest
from ebbtide.helper.criu.machine_profile import Machine, this_machine
from ebbtide.helper.errors import HelperError, HelperUnusable
from ebbtide.helper.journal.journal_file import Journal
from ebbtide.helper.journal.journal_state import Entry, Line
from ebbtide.helper.journal.operation import Operation, Tool, Workplace
from ebbtide.helper.journal.workload_states import Op, Standing, Step
from ebbtide.helper.protocol.line_socket import Peer
from ebbtide.helper.protocol.requests import Discard, Dump, Request, Revive
from ebbtide.helper.service import Service
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.no_driver import NoDriver
from ebbtide.storage.errors import NoRoom, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.system.process import boot_id, is_alive
from tests.platform.helper.trees import Counting, counting
from tests.platform.storage.failing_calls import CountedCalls, failing_at

NAME = "a"
PEER = Peer(os.getpid(), os.geteuid())
NOT_KILLED = 7


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillingJournal(Journal):
    """Dies at one line."""

    place = ""

    def write(self, line: Line) -> Any:
        if self.place == f"before {line.step.value}":
            die()
        book = super().write(line)
        if self.place == f"after {line.step.value}":
            die()
        return book


def workplace(folder: Path, place: str = "", disk: Disk | None = None) -> Workplace:
    journal = KillingJournal(folder / "state", Disk())
    journal.place = place
    (folder / "state" / "runs").mkdir(exist_ok=True)
    return Workplace(journal, disk or Disk(), folder / "state" / "runs")


def service(place: Workplace, tool: Tool) -> Service:
    return Service(place, tool, BoundedDriver(NoDriver("none in this test")))


def in_a_child(work: Callable[[], None]) -> int:
    """Run it in a forked process; its exit code, -9 if it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = NOT_KILLED
        except HelperError:
            code = NOT_KILLED
        except HelperUnusable:
            die()  # as the server does
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def do(folder: Path, tool: Tool, operation: str, place: str) -> None:
    """The operation, with its death."""
    image = folder / "image"
    disk = Disk()
    how, _, verb = operation.rpartition(" ")
    if place.startswith("call "):
        number = int(place.removeprefix("call "))
        disk = Disk(CountedCalls(lambda at, _name: die() if at == number else None))
    if how == "full":
        disk = FullDisk()
    if how == "taken":
        disk = TakenDisk()
    if how == "unsure":
        disk = UnsureDisk()
    if how == "roomless":
        disk = RoomlessDisk()
    if how == "stuck":
        disk = StuckDisk()
    if how == "bad":
        bad = folder / "bad-criu"
        bad.write_text("#!/bin/sh\nexit 1\n")
        bad.chmod(0o700)
        tool = Tool(Criu(bad, tool.criu.version), tool.machine)
    if place == "at work":
        go = criu_program.Held.go

        def go_and_die(held: criu_program.Held) -> None:
            go(held)
            die()

        criu_program.Held.go = go_and_die  # type: ignore[method-assign, assignment]
    requests: dict[str, Request] = {
        "dump": Dump(verb="dump", name=NAME, image_dir=str(image)),
        "revive": Revive(verb="revive", image_dir=str(image)),
        "discard": Discard(verb="discard", image_dir=str(image)),
    }
    service(workplace(folder, place, disk), tool).answer(PEER, requests[verb])


class FullDisk(Disk):
    """No room for the manifest."""

    def write(self, path: Path, data: bytes) -> None:
        Disk(failing_at(1, 28)).write(path, data)


class TakenDisk(Disk):
    """Somebody takes the name at the last moment."""

    def move(self, source: Path, target: Path) -> bool:
        target.mkdir()
        (target / "theirs").touch()
        return super().move(source, target)


class RoomlessDisk(Disk):
    """No folder can be made."""

    def make_directory(self, path: Path) -> None:
        raise NoRoom(f"cannot create {path}: the filesystem is full")


class StuckDisk(Disk):
    """Nothing can be removed."""

    def remove(self, path: Path) -> bool:
        raise TransferFailed("remove", path, errno=5)


class UnsureDisk(Disk):
    """Renames, and then cannot make that durable."""

    def move(self, source: Path, target: Path) -> bool:
        super().move(source, target)
        raise TransferFailed("sync", target.parent, errno=5)


def settle(folder: Path, tool: Tool) -> None:
    """What the next helper does when it starts."""
    for thread in service(workplace(folder), tool).settle_all(lambda text: None):
        thread.join(60)
        assert not thread.is_alive()


def play(folder: Path, tool: Tool, point: str) -> str:
    """One point; what became of the workload."""
    operation, _, place = point.partition("/")
    with counting(folder) as tree:
        entry = Entry(NAME, tree.pid, tree.started, boot_id(), 1, os.geteuid(), Standing.LIVE)

        def prepare() -> None:
            first = workplace(folder)
            Operation.on(first, Op.REGISTER, entry, Step.DONE)
            if operation.endswith(("revive", "discard")):
                service(first, tool).answer(PEER, Dump(verb="dump", name=NAME, image_dir=str(folder / "image")))

        assert in_a_child(prepare) == NOT_KILLED
        if not is_alive(tree.pid, tree.started):
            tree.process.wait()
        ended = in_a_child(lambda: do(folder, tool, operation, place))
        if ended != -signal.SIGKILL:
            assert ended == NOT_KILLED, f"the work at {point} failed"
            return "too late"
        assert in_a_child(lambda: settle(folder, tool)) == NOT_KILLED, "settling failed"
        return judge(folder, tool, tree)


def judge(folder: Path, tool: Tool, tree: Counting) -> str:
    """Look at all there is: the workload is whole in exactly one place; and it can go on from there."""
    place = workplace(folder)
    entry = place.journal.book.entries.get(NAME)
    assert not place.journal.book.open_operations(), "something is still under way"
    image = folder / "image"
    theirs = image.exists() and not (image / COMMIT).exists()
    if theirs:
        assert [one.name for one in image.iterdir()] == ["theirs"], "half an image stands under its name"
    lives = entry is not None and is_alive(entry.pid, entry.started)
    left = {one.name for one in folder.iterdir()} - {"image", "state", "out", "bad-criu"}
    left |= {f"runs/{one.name}" for one in (folder / "state" / "runs").iterdir()}
    assert not left, f"left over: {left}"
    if entry is None:
        assert not image.exists() and not is_alive(tree.pid, tree.started)
        return "discarded"
    if entry.standing is Standing.LIVE:
        assert lives, "the book says that it lives"
        tree.goes_on()
        place.journal.close()
        return "lives" if entry.generation == 1 else "revived"
    assert entry.standing is Standing.DUMPED and not lives and tree.stands_still(), "it is in two places"
    check_files(image, read_manifest(image))
    tree.process.wait()
    revived = service(place, tool).answer(PEER, Revive(verb="revive", image_dir=str(image)))
    assert revived["alive"]
    tree.goes_on()
    place.journal.close()
    return "dumped"


def main() -> None:
    folder, criu, points = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    found = criu_program.look_at(criu)
    assert isinstance(found, Criu), found
    machine: Machine = this_machine(found.version)
    for number, point in enumerate(points):
        here = folder / str(number)
        here.mkdir(mode=0o700)
        try:
            became = play(here, Tool(found, machine), point)
        except AssertionError as error:
            became = f"WRONG: {error}"
        print(json.dumps({"point": point, "became": became}), flush=True)


if __name__ == "__main__":
    main()
