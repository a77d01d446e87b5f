"""The checks around CRIU, each with a case that no other of them would refuse; no CRIU is run."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.helper.criu.image import COMMIT, IMAGES, MANIFEST, Process, check_files, read_manifest
from ebbtide.helper.criu.objections import Objection
from ebbtide.helper.criu.proc_tree import Tree, look_at
from ebbtide.helper.errors import Busy, Refused, Undone
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Operation
from ebbtide.helper.journal.workload_states import Op, Standing, Step
from ebbtide.helper.operations.crash_recovery import settle
from ebbtide.helper.operations.image_dump import check_dump, dump, end_processes, lead_back, stands
from ebbtide.helper.operations.image_paths import check_way
from ebbtide.helper.operations.image_removal import check_discard, discard, remove_image
from ebbtide.helper.operations.image_revival import LOG, _half_made, _taken, check_name, check_revive, conclude
from ebbtide.helper.protocol.line_socket import Peer
from ebbtide.helper.protocol.requests import Discard, Request, Revive
from ebbtide.helper.service import Service
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.no_driver import NoDriver
from ebbtide.storage.errors import NoRoom, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.system.process import is_alive, kill_exactly
from tests.builders.helper import line
from tests.platform.helper.edge_killer import workplace
from tests.platform.helper.made_up import FREE_PID, NO_CRIU, criu_that, entry_of, image, process_of
from tests.platform.helper.trees import Counting, counting, wait_until

# ---- whose, and where


def test_a_whole_one_would_be_taken(folder: Path) -> None:
    made = image(folder)
    assert check_revive(made, NO_CRIU) == check_discard(made) == read_manifest(made)


@pytest.mark.parametrize("verb", ["revive", "discard"])
@pytest.mark.proves(
    "a workload is revived once at a time",
    "an image of another user is not discarded",
    "an image of another user is not revived",
)
def test_an_image_is_its_users_own_and_one_thing_happens_to_its_workload_at_a_time(folder: Path, verb: str) -> None:
    made = image(folder)
    service = Service(workplace(folder), NO_CRIU, BoundedDriver(NoDriver("none in this test")))
    asked: Request = (Revive if verb == "revive" else Discard)(verb=verb, image_dir=str(made))  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"is of user .*, not 12345"):
        service.answer(Peer(1, 12345), asked)
    for key in ("a", str(made)):
        with service._claims.claim({key}, "lock"), pytest.raises(Busy, match=f"lock of {key} is under way"):
            service.answer(Peer(1, os.geteuid()), asked)
    assert read_manifest(made).name == "a"


def test_an_image_is_not_brought_back_beside_its_workload(folder: Path) -> None:
    place = workplace(folder)
    with counting(folder) as tree:
        place.journal.write(registered(tree))
        service = Service(place, NO_CRIU, BoundedDriver(NoDriver("none in this test")))
        with pytest.raises(Refused, match=f"a is live as process {tree.pid}"):
            service.answer(Peer(1, os.geteuid()), Revive(verb="revive", image_dir=str(image(folder))))


def test_a_folder_within_an_image_is_open_to_nobody_either(folder: Path) -> None:
    made = image(folder)
    (made / IMAGES).chmod(0o755)
    for check in (check_discard, lambda path: check_revive(path, NO_CRIU)):
        with pytest.raises(Refused, match="others could have written"):
            check(made)
    (made / IMAGES).chmod(0o700)
    (folder / "link").symlink_to(made)
    with pytest.raises(Refused, match="is not a folder"):
        check_discard(folder / "link")


def test_others_may_write_nowhere_on_the_way_to_an_image(folder: Path) -> None:
    for name, mode, says in [("open", 0o777, "can change"), ("sticky", 0o1777, ""), ("group", 0o770, "can change")]:
        above = folder / name
        (above / "mine").mkdir(parents=True, mode=0o700)
        above.chmod(mode)
        if says:
            with pytest.raises(Refused, match=says):
                check_way(above / "mine" / "image")
        else:
            check_way(above / "mine" / "image")
            with pytest.raises(Refused, match="can change"):
                check_way(above / "image")  # anybody could make it first
    made = image(folder / "open" / "mine")
    for check in (check_discard, lambda path: check_revive(path, NO_CRIU)):
        with pytest.raises(Refused, match="can change what is in"):
            check(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_nobody_else_owns_a_folder_above_an_image(folder: Path) -> None:
    (folder / "theirs" / "mine").mkdir(parents=True, mode=0o700)
    os.chown(folder / "theirs", 65534, -1)
    with pytest.raises(Refused, match="others than user"):
        check_way(folder / "theirs" / "mine" / "image")


def test_a_file_that_cannot_be_read_is_a_refusal(folder: Path) -> None:
    made = image(folder)
    manifest = read_manifest(made)
    (made / IMAGES / "core.img").unlink()
    (made / IMAGES).rmdir()
    with pytest.raises(Refused, match="cannot be read"):
        check_files(made, manifest)
    (made / COMMIT).unlink()
    (made / COMMIT).mkdir()
    with pytest.raises(Refused, match="cannot be read"):
        read_manifest(made)


# ---- making one


def test_who_is_to_be_dumped_is_the_very_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counting(folder) as tree:
        for changes in ({"boot": "another"}, {"started": tree.started + 1}):
            with pytest.raises(Refused, match="has ended"):
                check_dump(NO_CRIU, entry_of(tree, **changes), folder / "image")
        with pytest.raises(Refused, match="is reviving at /there"):
            check_dump(NO_CRIU, entry_of(tree, Standing.REVIVING, image_dir="/there"), folder / "image")

        def another(pid: int) -> Tree:  # it ended, and its pid was given away, since it was looked at
            found = look_at(pid)
            return Tree((replace(found.root, started=found.root.started + 1), *found.members[1:]))

        monkeypatch.setattr("ebbtide.helper.operations.image_dump.look_at", another)
        with pytest.raises(Refused, match="has ended"):
            check_dump(NO_CRIU, entry_of(tree), folder / "image")


def test_an_image_for_which_there_is_no_room_is_not_begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.helper.operations.image_paths.OVERHEAD_BYTES", 1 << 60)
    with counting(folder) as tree, pytest.raises(Refused, match="does not fit"):
        check_dump(NO_CRIU, entry_of(tree), folder / "image")


WRITES_ONE = 'echo core > "$D/core.img"'


class Taken(Disk):
    """Something has appeared at the image's name."""

    def move(self, source: Path, target: Path) -> bool:
        return False


def test_a_dump_does_not_replace_what_has_appeared_at_its_name(folder: Path) -> None:
    place = workplace(folder, disk=Taken())
    with counting(folder) as tree:
        place.journal.write(registered(tree))
        with pytest.raises(Undone, match="something has appeared"):
            dump(place, criu_that(folder, WRITES_ONE), entry_of(tree), folder / "image")
        tree.goes_on()
    assert not (folder / "image").exists()


def test_what_came_between_the_look_and_the_stop_is_an_objection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(), (Objection("it has a TCP connection now", "close it"),)])
    monkeypatch.setattr("ebbtide.helper.operations.image_dump._objections", lambda *_, **__: next(looks))
    place = workplace(folder)
    with counting(folder) as tree:
        place.journal.write(registered(tree))
        with pytest.raises(Undone, match="TCP connection now"):
            dump(place, criu_that(folder, WRITES_ONE), entry_of(tree), folder / "image")
        tree.goes_on()
    assert not (folder / "image").exists()


def registered(tree: Counting) -> Any:
    entry = entry_of(tree)
    return line("a").model_copy(update={"pid": entry.pid, "started": entry.started, "boot": entry.boot})


def begun(folder: Path, entry: Entry, op: Op = Op.DUMP, disk: Disk | None = None, **facts: Any) -> Operation:
    return Operation.on(workplace(folder, disk=disk), op, entry, **facts)


def test_all_of_a_stopped_tree_is_let_go_on_and_nobody_else(folder: Path) -> None:
    with counting(folder, "99999999", "child") as tree:
        members = [one.pid for one in look_at(tree.pid).members]
        assert len(members) > 1
        for pid in members:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: states(members) == {"T"})
        other = begun(folder / "other", entry_of(tree, started=tree.started + 1))
        lead_back(other, folder / "work")
        assert states(members) == {"T"}, "it is another process than the one that was to be dumped"
        lead_back(begun(folder / "own", entry_of(tree)), folder / "work")
        wait_until(lambda: "T" not in states(members))


def states(pids: list[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_only_the_processes_of_the_image_are_ended_and_they_are_gone_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(folder) as tree:
        manifest = read_manifest(image(folder, processes=(process_of(tree),), boot="another"))
        end_processes(manifest)
        tree.goes_on()

        def late(pid: int, started: int) -> bool:  # as a large process is, or one that waits for a disk
            threading.Timer(0.2, kill_exactly, (pid, started)).start()
            return True

        monkeypatch.setattr("ebbtide.helper.operations.image_dump.kill_exactly", late)
        end_processes(manifest.model_copy(update={"boot": entry_of(tree).boot}))
        assert not is_alive(tree.pid, tree.started)


def test_an_image_that_another_dump_has_made_is_not_this_ones(folder: Path) -> None:
    with counting(folder) as tree:
        operation = begun(folder, entry_of(tree))
    assert stands(operation, image(folder)) is None
    (folder / "own").mkdir()
    assert stands(operation, image(folder / "own", operation=operation.id)) is not None


class Unsynced(Disk):
    """The rename was seen; that it is durable cannot be had."""

    def sync_directory(self, path: Path) -> None:
        if self.on:
            raise TransferFailed("sync", path, errno=5)
        super().sync_directory(path)

    on = False


@pytest.mark.proves("the rename is durable before a process is killed")
def test_nothing_is_killed_before_its_image_would_survive_a_power_cut(folder: Path) -> None:
    disk = Unsynced()
    with counting(folder) as tree:
        operation = begun(folder, entry_of(tree), disk=disk, image_dir=str(folder / "image"), work=str(folder / "work"))
        for step in (Step.SPAWNED, Step.STOPPED, Step.SEALED):
            operation.note(step)
        image(folder, operation=operation.id, processes=(process_of(tree),))
        [lines] = operation.place.journal.book.open_operations()
        disk.on = True
        with pytest.raises(TransferFailed):
            settle(operation.place, lines, lambda _pid: "")
        tree.goes_on()
        disk.on = False
        assert settle(operation.place, lines, lambda _pid: "") == "a: dumped"
        assert not is_alive(tree.pid, tree.started)


# ---- bringing one back


def test_a_process_that_has_ended_is_given_time_to_be_waited_for(folder: Path) -> None:
    manifest = read_manifest(image(folder))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it
    threading.Timer(0.2, os.waitpid, (child, 0)).start()
    assert _taken(manifest.model_copy(update={"processes": (Process(pid=child, started=1, name=""),)})) == []


def test_a_workload_that_runs_is_not_brought_back_beside_itself(folder: Path) -> None:
    manifest = read_manifest(image(folder))
    with counting(folder) as tree:
        for standing in (Standing.LIVE, Standing.DUMPING, Standing.REVIVING):
            with pytest.raises(Refused, match=f"a is {standing.value} as process {tree.pid}"):
                check_name(entry_of(tree, standing), manifest)
        check_name(entry_of(tree, Standing.DUMPED), manifest)
        check_name(entry_of(tree, started=tree.started + 1), manifest)
        check_name(entry_of(tree, boot="another"), manifest)
    check_name(None, manifest)


@pytest.mark.parametrize(("said", "counts"), [("Restore finished successfully", True), ("Error: no", False)])
def test_a_criu_that_came_to_its_end_counts_though_nobody_heard_its_code(folder: Path, said: str, counts: bool) -> None:
    with counting(folder) as tree:
        manifest = read_manifest(image(folder, processes=(process_of(tree),)))
        operation = begun(folder, entry_of(tree), Op.REVIVE, image_dir=str(folder / "image"))
        operation.note(Step.SPAWNED)
        operation.run.mkdir()
        (operation.run / LOG).write_text(f"(0.1): {said}\n")
        if counts:
            assert conclude(operation, manifest, None, 0).generation == 2
        else:
            with pytest.raises(Undone, match="not brought back"):
                conclude(operation, manifest, 1, 0)
        tree.goes_on()


def test_of_what_a_killed_criu_left_only_its_own_is_cleared_away(folder: Path) -> None:
    with counting(folder) as tree:
        name = Path(f"/proc/{tree.pid}/comm").read_text().strip()
        mine = Process(pid=tree.pid, started=1, name=name)
        assert _half_made(mine, tree.started) == (tree.pid, tree.started)
        assert _half_made(mine, tree.started + 1) is None, "it was there before"
        assert _half_made(mine.model_copy(update={"name": "other"}), tree.started) is None
    assert _half_made(Process(pid=FREE_PID, started=1, name=name), 0) is None


@pytest.mark.proves("an image that went meanwhile is no image")
def test_an_image_that_went_while_nobody_looked_is_not_brought_back(folder: Path) -> None:
    with counting(folder) as tree:
        operation = begun(folder, entry_of(tree), Op.REVIVE, image_dir=str(folder / "gone"))
        [lines] = operation.place.journal.book.open_operations()
        assert "its image is gone" in settle(operation.place, lines, lambda _pid: "")
        assert operation.place.journal.book.open_operations() == ()


def test_a_criu_that_had_no_word_has_done_nothing(folder: Path) -> None:
    with counting(folder) as tree:
        operation = begun(folder, entry_of(tree), Op.REVIVE, image_dir=str(image(folder)))
        [lines] = operation.place.journal.book.open_operations()
        assert settle(operation.place, lines, lambda _pid: "") == "a: not revived"
        assert operation.place.journal.book.open_operations() == ()


def test_a_tree_that_runs_again_counts_whatever_became_of_its_image(folder: Path) -> None:
    with counting(folder) as tree:
        operation = begun(folder, entry_of(tree), Op.REVIVE, image_dir=str(folder / "gone"))
        operation.note(Step.SPAWNED)
        operation.note(Step.RESTORED, revived_pid=tree.pid, revived_started=tree.started, revived_generation=4)
        [lines] = operation.place.journal.book.open_operations()
        assert settle(operation.place, lines, lambda _pid: "") == "a: revived"
        found = operation.place.journal.book.entries["a"]
        assert (found.standing, found.pid, found.generation) == (Standing.LIVE, tree.pid, 4)


@pytest.mark.proves("a dump is settled by its image")
def test_a_criu_that_is_still_at_work_is_waited_for(folder: Path) -> None:
    (folder / "criu").mkdir()
    with counting(folder) as tree, counting(folder / "criu") as criu:
        operation = begun(folder, entry_of(tree), image_dir=str(folder / "image"), work=str(folder / "work"))
        operation.note(Step.SPAWNED, runner_pid=criu.pid, runner_started=criu.started)
        [lines] = operation.place.journal.book.open_operations()
        threading.Timer(0.2, kill_exactly, (criu.pid, criu.started)).start()
        assert settle(operation.place, lines, lambda _pid: "") == "a: its dump was called off, it runs on"
        assert not is_alive(criu.pid, criu.started)
        tree.goes_on()


# ---- removing one


def test_what_is_no_whole_image_is_not_removed(folder: Path) -> None:
    made = image(folder)
    (made / COMMIT).unlink()
    with pytest.raises(Refused, match="half written"):
        check_discard(made)
    assert (made / MANIFEST).exists()


class Stuck(Disk):
    """No folder can be removed."""

    def remove_tree(self, path: Path) -> None:
        raise NoRoom(f"cannot remove {path}")


def test_an_image_that_goes_stops_counting_first_and_what_is_left_is_told(folder: Path) -> None:
    made = image(folder)
    place = workplace(folder, disk=Stuck())
    with pytest.raises(Undone, match="cannot be removed"):
        discard(place, made, read_manifest(made), None)
    assert not (made / COMMIT).exists() and (made / MANIFEST).exists()
    assert place.journal.book.open_operations() == ()
    for _ in range(2):
        remove_image(Disk(), made)
        assert not made.exists()


# ---- what makes one durable


def test_commit_is_written_last_and_all_else_is_durable_by_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        plain = getattr(Disk, name)

        def note(self: Disk, path: Path, *more: Any) -> Any:
            done.append(f"{name} {path.name}")
            return plain(self, path, *more)

        return note

    for name in ("write", "sync_file", "sync_directory"):
        monkeypatch.setattr(Disk, name, noting(name))
    image(folder)
    assert done == [
        "sync_file core.img", "sync_directory images", "write manifest.json", "write COMMIT", "sync_directory image",
    ]  # fmt: skip


# ---- settling


@pytest.mark.proves("what could not be settled stays claimed", "what is being settled is claimed")
def test_what_is_being_settled_is_busy_and_stays_so_if_it_cannot_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, told = threading.Event(), list[str]()

    def fails(*_: object) -> str:
        assert go.wait(10)
        raise NoRoom("the disk is full")

    with counting(folder) as tree:
        operation = begun(folder, entry_of(tree), Op.DISCARD, image_dir=str(folder / "image"))
        monkeypatch.setattr("ebbtide.helper.service.settle", fails)
        service = Service(operation.place, NO_CRIU, BoundedDriver(NoDriver("none in this test")))
        threads = service.settle_all(told.append)
        asked = Discard(verb="discard", image_dir=str(folder / "image"))
        for _ in range(2):
            with pytest.raises(Busy, match="settling discard"):
                service.answer(Peer(1, os.geteuid()), asked)
            go.set()
            for thread in threads:
                thread.join(10)
        assert told == ["a: not settled, and busy until the helper is started again: the disk is full"]
        assert service._claims.who("a") == "settling discard"
