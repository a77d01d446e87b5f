"""Removing what is not needed, and nothing else."""

import os
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.budget import Budget
from ebbtide.storage.durable import Disk
from ebbtide.storage.errors import NoRoom, NotPublished
from ebbtide.storage.training.cleaning import held_checkpoint, of_checkpoint
from ebbtide.storage.training.retention import Retention
from ebbtide.storage.training.room import RESERVATION, measure
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import LocalLeases
from tests.platform.storage.training.runs import at, ids, leftovers, make_run, state_at, step_read


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


def test_the_last_good_one_stays_even_if_newer_ones_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, keep=Retention(3))
    for step in (1, 2, 3):
        run.save(state_at(step), epoch=1, step=step)
        run.settle()
    for step in (2, 3):
        (run.paths.checkpoint(at(f"e1/step-{step}")) / "rank0.safetensors").unlink()
    make_run(tmp_path, keep=Retention(1)).clean(1)
    assert ids(run) == ["e1/step-3", "e1/step-1"]


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


def test_an_old_directory_in_which_something_is_being_written_is_young(tmp_path: Path) -> None:
    run = make_run(tmp_path, grace_s=100)
    run.save(state_at(1), epoch=2, step=1)
    run.settle()
    work = run.paths.directory / "e1" / ".tmp-step-9"
    work.mkdir(parents=True)
    (work / "rank0.safetensors").write_bytes(b"half")
    make_old(work, 1000)
    (work / "rank1.safetensors").write_bytes(b"now")
    run.clean(2)
    assert work.exists()


def test_a_later_gang_is_left_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, keep=Retention(1), grace_s=-1)
    run.save(state_at(1), epoch=1, step=1)
    run.save(state_at(2), epoch=1, step=2)
    run.settle()
    make_run(tmp_path).begin_epoch(3)
    (run.paths.directory / "e3" / ".tmp-step-9").mkdir()
    (run.paths.directory / "e1" / ".tmp-step-9").mkdir()
    assert run.clean(1).removed == []
    assert leftovers(run) == [".tmp-step-9", ".tmp-step-9"]


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


def test_a_lease_names_its_checkpoint() -> None:
    assert held_checkpoint(of_checkpoint(at("e3/step-40"))) == at("e3/step-40")


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
    assert len(leftovers(run)) == 1
    run.clean(1)
    assert leftovers(run) == [] and step_read(run) == 2


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


# ---- room


def test_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class NoWrite:
        def write(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("nothing may be written")

        read = write

    run = make_run(tmp_path, budget=Budget(max_bytes=100_000, keep_free_bytes=0), transport=NoWrite())
    with pytest.raises(NoRoom, match=r"no room for a checkpoint of .* are missing .* raise the budget"):
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


def test_room_that_must_stay_free_is_left(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    run = make_run(tmp_path, budget=Budget(keep_free_bytes=2 * free))
    with pytest.raises(NoRoom, match="kept for others"):
        run.save(state_at(1), epoch=1, step=1)


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


def test_leases_are_judged_only_when_room_is_missing(tmp_path: Path) -> None:
    asked: list[str] = []

    class Noted(LocalLeases):
        def living(self) -> frozenset[str]:
            asked.append("living")
            return frozenset()

        def present(self) -> frozenset[str]:
            asked.append("present")
            return frozenset({of_checkpoint(at("e1/step-1")), "something else"})

    run = make_run(tmp_path, keep=Retention(1), leases=Noted())
    run.save(state_at(1), epoch=1, step=1)
    run.settle()
    run.save(state_at(2), epoch=1, step=2)
    run.settle()
    assert set(asked) == {"present"} and len(ids(run)) == 2
    tight = make_run(
        tmp_path, keep=Retention(1), leases=Noted(), budget=Budget(max_bytes=(1 << 20) + 70_000, keep_free_bytes=0)
    )
    tight.save(state_at(3), epoch=1, step=3)
    assert "living" in asked and "e1/step-1" not in ids(tight)
