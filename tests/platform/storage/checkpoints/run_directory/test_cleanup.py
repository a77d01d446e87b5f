"""Removing what is not needed, and nothing else."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.checkpoints.manager.checkpoint_manager import IfCorrupt, RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.checkpoint_space import RESERVATION, measure
from ebbtide.storage.checkpoints.run_directory.cleanup import held_checkpoint, of_checkpoint
from ebbtide.storage.checkpoints.run_directory.lineage import Start
from ebbtide.storage.errors import NoRoom, NotPublished, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.builders.checkpoints import flip
from tests.platform.storage.checkpoints.runs import (
    at,
    ids,
    leftovers,
    make_run,
    make_transport,
    same,
    state_at,
    step_read,
)
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import LocalLeases


def make_old(path: Path, age_s: float) -> None:
    for each in [path, *path.rglob("*")]:
        when = each.stat().st_mtime - age_s
        os.utime(each, (when, when))


def test_the_newest_few_stay(tmp_path: Path) -> None:
    run = make_run(tmp_path, keep=Retention(2, keep_every=4))
    for step in range(1, 8):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    assert ids(run) == ["e1/step-7", "e1/step-6", "e1/step-4"]
    assert leftovers(run) == []


@pytest.mark.proves(
    "damaged ones do not count as the newest that opens",
    "the newest that opens stays, however many newer ones are damaged",
)
def test_the_last_good_one_stays_even_if_newer_ones_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, keep=Retention(3))
    for step in (1, 2, 3):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    for step in (2, 3):
        (run.paths.checkpoint(at(f"e1/step-{step}")) / "rank0.safetensors").unlink()
    make_run(tmp_path, keep=Retention(1)).clean(1)
    assert ids(run) == ["e1/step-3", "e1/step-1"]


@pytest.mark.proves("half written things of others have a grace")
def test_half_written_things_go_after_a_grace_and_not_before(tmp_path: Path) -> None:
    run = make_run(tmp_path, grace_s=100)
    run.save(state_at(1), epoch=2, step=1)
    run.settle()
    (run.paths.directory / "e1" / ".tmp-step-9").mkdir(parents=True)
    (run.paths.directory / "e1" / ".tmp-step-9" / "rank0.safetensors").write_bytes(b"half")
    (run.paths.directory / "e2" / ".start.json.abc.tmp").write_bytes(b"half")
    (run.paths.directory / "step-log.txt").write_text("of others")
    (run.paths.directory / ".hidden").write_text("of others")
    run.clean(2)
    assert leftovers(run) == [".hidden", ".start.json.abc.tmp", ".tmp-step-9"]
    make_old(run.paths.directory / "e1" / ".tmp-step-9", 101)
    make_old(run.paths.directory / "e2" / ".start.json.abc.tmp", 99)
    removed = run.clean(2).removed
    assert [name for name, _ in removed] == ["e1/.tmp-step-9"]
    assert leftovers(run) == [".hidden", ".start.json.abc.tmp"]
    assert not run.paths.epoch(1).exists(), "an epoch in which nothing is goes too"
    assert (run.paths.directory / "step-log.txt").exists()


@pytest.mark.proves("a directory is as young as what is in it")
def test_an_old_directory_in_which_something_is_being_written_is_young(tmp_path: Path) -> None:
    run = make_run(tmp_path, grace_s=100)
    run.save(state_at(1), epoch=2, step=1)
    run.settle()
    work = run.paths.directory / "e1" / ".tmp-step-9"
    work.mkdir(parents=True)
    (work / "rank0.safetensors").write_bytes(b"half")
    make_old(work, 1000)
    (work / "rank0.safetensors").write_bytes(b"now")  # which leaves the directory as old as it was
    run.clean(2)
    assert work.exists()


@pytest.mark.proves("a gang that was replaced leaves half written things alone")
def test_a_later_gang_is_left_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, keep=Retention(1), grace_s=-1)
    run.save(state_at(1), epoch=1, step=1)
    run.save(state_at(2), epoch=1, step=2)
    run.settle()
    make_run(tmp_path).begin_epoch(3)
    (run.paths.directory / "e3" / ".tmp-step-9").mkdir()
    (run.paths.directory / "e1" / ".tmp-step-9").mkdir()
    (run.paths.directory / "e0" / ".tmp-step-9").mkdir(parents=True)
    assert run.clean(1).removed == []
    assert leftovers(run) == [".tmp-step-9"] * 3


@pytest.mark.proves("a reader has its lease before it looks")
def test_one_that_is_read_stays_until_it_is_let_go(tmp_path: Path) -> None:
    leases = LocalLeases()
    run = make_run(tmp_path, keep=Retention(1), leases=leases)
    run.save(state_at(1), epoch=1, step=1)
    with run.open(at("e1/step-1"), held=True):
        run.save(state_at(2), epoch=1, step=2)
        run.settle()
        assert ids(run) == ["e1/step-2", "e1/step-1"]
    assert [name for name, _ in run.clean(1).removed] == ["e1/step-1"]
    with pytest.raises(NotPublished), run.open(at("e1/step-1"), held=True):
        pass
    assert leases.present() == frozenset()


@pytest.mark.proves("readers are looked for once more after a checkpoint was moved")
def test_one_that_is_taken_while_it_is_judged_stays(tmp_path: Path) -> None:
    """Whoever reads it has its lease after the look at the leases, and before the checkpoint was moved away."""
    leases, opened = LocalLeases(), list[OpenCheckpoint]()

    class Taken(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            if "removed-" in Path(dst).name and not opened:
                opened.append(make_run(tmp_path, leases=leases).open(at("e1/step-1"), held=True))
            super().rename(src, dst)

    run = make_run(tmp_path, keep=Retention(1), leases=leases, disk=Disk(Taken()))
    for step in (1, 2):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    [reader] = opened
    with reader:
        assert same(reader.read_state(), state_at(1))
    assert [name for name, _ in run.clean(1).removed] == ["e1/step-1"]
    assert leftovers(run) == []


@pytest.mark.proves("readers are looked for once more before a checkpoint is moved")
def test_one_that_was_taken_already_is_not_even_moved_for_a_moment(tmp_path: Path) -> None:
    """Whoever reads it came while the dead readers were told from the living, which may take a minute."""

    class Late(LocalLeases):
        def living(self) -> frozenset[str]:
            found = super().living()
            if (tmp_path / "train/tide/e1/step-2").exists() and not opened:
                opened.append(make_run(tmp_path, leases=self).open(at("e1/step-1"), held=True))
            return found

    opened, calls = list[OpenCheckpoint](), CountedCalls()
    run = make_run(tmp_path, keep=Retention(1), leases=Late(), disk=Disk(calls))
    for step in (1, 2):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    [reader] = opened
    with reader:
        assert same(reader.read_state(), state_at(1))
    assert not [path for what, _, path in calls.events if what == "rename" and path and "removed-" in path.name]


@pytest.mark.proves("a checkpoint of which it cannot be told who reads it comes back")
def test_if_it_cannot_be_told_who_reads_a_checkpoint_it_stays(tmp_path: Path) -> None:
    class Failing(LocalLeases):
        looks = 0

        def present(self) -> frozenset[str]:
            self.looks += 1
            if self.looks == 2:  # it has been moved away by then
                raise TransferFailed("list", tmp_path, errno=errno.EIO)
            return super().present()

    wide = make_run(tmp_path, keep=Retention(9))
    for step in (1, 2):
        wide.save(state_at(step), epoch=1, step=step)
        wide.settle()
    run = make_run(tmp_path, keep=Retention(1), leases=Failing())
    done = run.clean(1)
    assert done.removed == [] and len(done.failed) == 1
    assert ids(run) == ["e1/step-2", "e1/step-1"] and leftovers(run) == []


def test_a_dead_reader_keeps_nothing_from_being_removed(tmp_path: Path) -> None:
    dead = of_checkpoint(at("e1/step-1"))

    class WithDead(LocalLeases):
        buried = False

        def living(self) -> frozenset[str]:
            self.buried = True
            return super().living()

        def present(self) -> frozenset[str]:
            return frozenset() if self.buried else frozenset({dead})

    run = make_run(tmp_path, keep=Retention(1), leases=WithDead())
    for step in (1, 2):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    assert ids(run) == ["e1/step-2"]


@pytest.mark.proves("half written things of a gang itself are in use")
def test_what_is_being_written_is_not_taken_for_dead_however_long_the_process_stood_still(tmp_path: Path) -> None:
    class Paused(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            if Path(dst).name == "step-2":
                make_old(Path(src), 1000)
                run.clean(1)  # its own cleaning thread goes on first
            super().rename(src, dst)

    run = make_run(tmp_path, disk=Disk(Paused()))
    for step in (1, 2):
        run.save(state_at(step), epoch=1, step=step)
    assert step_read(run) == 2


@pytest.mark.proves("the checkpoint that a gang has read stays until it has one of its own")
def test_the_one_that_was_read_stays_until_there_is_another(tmp_path: Path) -> None:
    """Not even the newest that opens: its content is read by nobody but those who go on from it."""
    wide = make_run(tmp_path, keep=Retention(9))
    for step in (1, 2):
        wide.save(state_at(step), epoch=1, step=step)
        wide.settle()
    flip(wide.paths.checkpoint(at("e1/step-2")) / "rank0.safetensors", 5000)
    run = make_run(tmp_path, keep=Retention(1))
    run.begin_epoch(2)
    found = run.read_newest(OpenCheckpoint.read_state, if_corrupt=IfCorrupt.OLDER)
    assert found is not None and found.id == at("e1/step-1")
    run.clean(2)
    assert ids(run) == ["e1/step-2", "e1/step-1"]
    run.save(state_at(3), epoch=2, step=3)
    run.settle()
    assert ids(run) == ["e2/step-3"]


def test_a_lease_names_its_checkpoint() -> None:
    assert held_checkpoint(of_checkpoint(at("e3/step-40"))) == at("e3/step-40")


@pytest.mark.proves("a checkpoint that goes is renamed first")
def test_a_removal_that_is_cut_off_is_finished_by_the_next_round(tmp_path: Path) -> None:
    class Broken(CountedCalls):
        def unlink(self, path: Any) -> None:
            raise OSError(5, "broken")

    run = make_run(tmp_path, keep=Retention(1), grace_s=-1)
    run.save(state_at(1), epoch=1, step=1)
    run.settle()
    broken = make_run(tmp_path, keep=Retention(1), grace_s=-1, disk=Disk(Broken()))
    make_run(tmp_path, keep=Retention(9)).save(state_at(2), epoch=1, step=2)
    done = broken.clean(1)
    assert done.failed and ids(run) == ["e1/step-2"], "it is out of sight at once"
    assert [name for name, _ in done.removed] == ["e1/step-1"]
    assert len(leftovers(run)) == 1
    run.clean(1)
    assert leftovers(run) == [] and step_read(run) == 2


@pytest.mark.proves("what cannot be removed fails no save")
def test_what_cannot_be_removed_never_fails_a_save(tmp_path: Path) -> None:
    class Broken(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            if "removed" in Path(dst).name:
                raise OSError(5, "broken")
            super().rename(src, dst)

    run = make_run(tmp_path, keep=Retention(1), disk=Disk(Broken()))
    for step in (1, 2, 3):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    assert step_read(run) == 3 and len(ids(run)) == 3
    done = run.clean(1)
    assert done.removed == [] and len(done.failed) == 2, "the others are tried all the same"


@pytest.mark.proves("without a thread to clean in a commit is one all the same")
def test_without_a_thread_to_clean_in_a_commit_is_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def short(self: threading.Thread) -> None:
        if self.name.startswith("clean"):
            raise RuntimeError("can't start new thread")
        start(self)

    run = make_run(tmp_path, keep=Retention(1))
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", short)
        for step in (1, 2):
            run.save(state_at(step), epoch=1, step=step)
    assert run.settle() and step_read(run) == 2 and "can't start new thread" in caplog.text
    run.save(state_at(3), epoch=1, step=3)
    assert run.settle() and ids(run) == ["e1/step-3"]


# ---- room


@pytest.mark.proves("a full budget never costs the last good checkpoint")
def test_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class NoWrite:
        def write(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("nothing may be written")

        read = write

    run = make_run(tmp_path, budget=Budget(max_bytes=100_000, keep_free_bytes=0), transport=NoWrite())
    with pytest.raises(
        NoRoom, match=r"no room for a checkpoint of .* are missing .*pool\.storage\.checkpoints_max_per_job"
    ):
        run.save({"x": state_at(1, rows=400)}, epoch=1, step=1)
    assert leftovers(run) == [] and run.newest() is None


def test_a_full_budget_is_emptied_as_far_as_it_may_be(tmp_path: Path) -> None:
    """Each checkpoint takes some 40 KB, and a MiB more is asked for."""
    budget = Budget(max_bytes=(1 << 20) + 130_000, keep_free_bytes=0)
    run = make_run(tmp_path, budget=budget, keep=Retention(1))
    wide = make_run(tmp_path, keep=Retention(9))
    wide.save(state_at(1), epoch=1, step=1)
    wide.save(state_at(2), epoch=1, step=2)
    wide.save(state_at(3), epoch=1, step=3)
    run.save(state_at(4), epoch=1, step=4)
    run.settle()
    assert step_read(run) == 4 and ids(run) == ["e1/step-4"]
    tight = make_run(tmp_path, budget=Budget(max_bytes=60_000, keep_free_bytes=0), keep=Retention(1))
    with pytest.raises(NoRoom):
        tight.save(state_at(5), epoch=1, step=5)
    assert step_read(run) == 4, "the last good one is not given for the next"


def test_what_dead_gangs_left_makes_room_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, budget=Budget(max_bytes=(1 << 20) + 200_000, keep_free_bytes=0))
    work = run.paths.directory / "e1" / ".tmp-step-9"
    work.mkdir(parents=True)
    (work / "rank0.safetensors").write_bytes(bytes(300_000))
    run.save(state_at(1), epoch=2, step=1)
    assert step_read(run) == 1 and not work.exists()


def test_what_is_being_written_is_not_removed_to_make_room_for_it(tmp_path: Path) -> None:
    """However short the grace."""
    budget = Budget(max_bytes=(1 << 20) + 60_000, keep_free_bytes=0)
    run = make_run(tmp_path, budget=budget, keep=Retention(1), grace_s=-1)
    wide = make_run(tmp_path, keep=Retention(9))
    wide.save(state_at(1), epoch=1, step=1)
    wide.save(state_at(2), epoch=1, step=2)
    run.save(state_at(3), epoch=1, step=3)
    assert step_read(run) == 3


class FullBecauseOf(CountedCalls):
    """A filesystem without room for as long as something is there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def write(self, fd: int, data: Any, /) -> int:
        if self.file.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


def half_written(run: RunCheckpoints) -> Path:
    work = run.paths.directory / "e1" / ".tmp-step-9"
    work.mkdir(parents=True)
    (work / "rank0.safetensors").write_bytes(b"of a gang that died")
    return work / "rank0.safetensors"


@pytest.mark.proves(
    "a full disk is cleaned before a gang that begins calls it full",
    "a full disk is cleaned before a save calls it full",
)
@pytest.mark.parametrize("what", ["begin", "save"])
def test_a_full_disk_is_cleaned_before_it_is_called_full(tmp_path: Path, what: str) -> None:
    """Not even a reservation, or the word of a gang that begins, can be written."""
    good = make_run(tmp_path)
    good.save(state_at(1), epoch=1, step=1)
    good.settle()
    if what == "save":
        good.begin_epoch(2)
    file = half_written(good)
    run = make_run(tmp_path, disk=Disk(FullBecauseOf(file)))
    if what == "begin":
        assert run.begin_epoch(2) == Start(at("e1/step-1"))
    else:
        run.save(state_at(2), epoch=2, step=2)
    assert not file.exists()


@pytest.mark.proves("what an empty epoch says counts until this gang has said it")
def test_what_an_empty_epoch_says_counts_until_the_next_gang_has_said_it(tmp_path: Path) -> None:
    """1. A person decides for step 1; 2. the next gang finds a full disk, and cleans it before it can say anything;
    3. step 2 cannot go meanwhile, since somebody reads it; 4. the gang goes on from step 1 all the same."""
    leases = LocalLeases()
    good = make_run(tmp_path, leases=leases)
    for step in (1, 2):
        good.save(state_at(step), epoch=1, step=step)
        good.settle()
    good.begin_epoch(2, Start(at("e1/step-1")))
    run = make_run(tmp_path, leases=leases, disk=Disk(FullBecauseOf(half_written(good))))
    with good.open(at("e1/step-2"), held=True):
        assert run.begin_epoch(3) == Start(at("e1/step-1"))
    run.clean(3)
    assert ids(run) == ["e1/step-1"] and not run.paths.epoch(2).exists(), "now it is said elsewhere"


def test_a_disk_that_is_full_when_the_tensors_come_is_cleaned_and_they_are_written_again(tmp_path: Path) -> None:
    good = make_run(tmp_path)
    good.save(state_at(1), epoch=1, step=1)
    good.settle()
    good.begin_epoch(2)
    file = half_written(good)

    class Full(PosixTransport):
        def write(self, *arguments: Any, **more: Any) -> TransferReport:
            if file.exists():
                raise NoRoom("the quota is full")
            return super().write(*arguments, **more)

    run = make_run(tmp_path, transport=Full(make_transport()._pool, threads=2))
    run.save(state_at(2), epoch=2, step=2)
    assert step_read(run) == 2 and not file.exists()
    run.settle()
    assert leftovers(run) == []


def test_a_disk_that_stays_full_is_told_once_there_is_nothing_to_clean(tmp_path: Path) -> None:
    run = make_run(tmp_path, disk=Disk(FullBecauseOf(tmp_path)))
    for attempt in (lambda: run.begin_epoch(1), lambda: run.save(state_at(1), epoch=1, step=1)):
        with pytest.raises(NoRoom, match="is full"):
            attempt()


@pytest.mark.proves("a neighbour that may not be listed stops no save")
def test_a_run_of_others_that_may_not_be_listed_stops_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        if "/train/other" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    (tmp_path / "train" / "other" / "e1").mkdir(parents=True)
    monkeypatch.setattr(os, "listdir", listdir)
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    assert step_read(run) == 1 and "other" in caplog.text


def test_room_that_must_stay_free_is_left(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    run = make_run(tmp_path, budget=Budget(keep_free_bytes=2 * free))
    with pytest.raises(NoRoom, match="kept for others"):
        run.save(state_at(1), epoch=1, step=1)


@pytest.mark.proves("what other runs have reserved is not there")
def test_what_other_runs_have_reserved_is_not_there(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    work = run.paths.directory.parent / "other" / "e1" / ".tmp-step-3"
    work.mkdir(parents=True)
    now_s = work.stat().st_mtime
    before = measure(run.paths, now_s).free_bytes
    (work / RESERVATION).write_bytes(b"%d\n" % (1 << 30))
    (work / "rank0.safetensors").write_bytes(bytes(1 << 20))
    assert before - measure(run.paths, now_s).free_bytes >= (1 << 30) - (2 << 20)
    assert before - measure(run.paths, now_s + 7 * 3600).free_bytes <= 4 << 20, "the other gang died long ago"


@pytest.mark.parametrize("content", [b"", b"x", b"-5", b"1e9", b"9" * 40])
def test_a_reservation_that_makes_no_sense_reserves_nothing(tmp_path: Path, content: bytes) -> None:
    run = make_run(tmp_path)
    work = run.paths.directory / "e1" / ".tmp-step-3"
    work.mkdir(parents=True)
    (work / RESERVATION).write_bytes(content)
    room = measure(run.paths, work.stat().st_mtime)
    assert (room.reserved_bytes, room.written_bytes, room.stored_bytes) == (0, 0, 0)
