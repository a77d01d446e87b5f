"""Saves that are cut off, refused, overtaken or done twice: the checkpoint before always counts."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.storage.checkpoints.manager.two_phase_save import EDGES, Saving, Stage
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.lineage import Start
from ebbtide.storage.checkpoints.state.about_json import About
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.rank_file import Shard, write_shards
from ebbtide.storage.errors import Corrupt, NoRoom, Refused, StorageError, Superseded, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.objects.manifest import FileEntry
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.builders.store import lost_by_a_power_cut
from tests.hunts import spread
from tests.platform.storage.checkpoints.runs import (
    at,
    ids,
    leftovers,
    make_run,
    make_transport,
    state_at,
    step_read,
)
from tests.platform.storage.failing_calls import CountedCalls, failing_at
from tests.platform.storage.stores import quick_directory

quick = pytest.fixture(quick_directory)

MOST_CHANGES = 70  # more than there are, so that some saves end well
TREE: Any = {"w": {"$tensor": "w"}}


def shards(step: int) -> list[Shard]:
    return [Shard.of_all("w", torch.full((3000,), float(step)))]


def write(saving: Saving, step: int = 1) -> RankEntry:
    saving.begin(12_000)
    return write_shards(saving.staging, 0, shards(step))


@pytest.mark.parametrize("first", spread([1, 2, 3]))
def test_a_save_that_is_killed_before_any_change_leaves_the_step_before_or_its_own(quick: Path, first: int) -> None:
    numbers = range(first, MOST_CHANGES + first, 3)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "tests.platform.storage.checkpoints.save_killer", str(quick)),
            *map(str, (numbers.start, numbers.stop, numbers.step)),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=Path(__file__).parents[5],
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [one["n"] for one in found] == list(numbers)
    assert found[-1]["ended"] and not found[0]["ended"]
    read = [one["read"] for one in found]
    assert read == sorted(read), "from some change on it is there, and before it is not"
    assert read.count(1) > 7 and all(one["read"] == 2 for one in found if one["ended"])
    assert all(one["then"] == 3 and one["left"] == [] for one in found)


@pytest.mark.parametrize("code", spread([errno.ENOSPC, errno.EDQUOT, errno.EIO]))
def test_a_full_or_failing_disk_at_any_change_leaves_the_step_before(quick: Path, code: int) -> None:
    calls = CountedCalls()
    make_run(quick / "count", disk=Disk(calls)).save(state_at(2), epoch=1, step=2)
    for number in range(1, calls.count + 1):
        good = make_run(quick / str(number))
        good.save(state_at(1), epoch=1, step=1)
        failing = make_run(quick / str(number), disk=Disk(failing_at(number, code, for_ever=True)))
        try:
            failing.save(state_at(2), epoch=1, step=2)
        except StorageError as error:
            assert isinstance(error, TransferFailed if code == errno.EIO else NoRoom), (number, error)
            assert str(quick) in str(error)
            if step_read(good) == 2:  # it was renamed, and nobody knows whether that is durable
                assert "cannot sync" in str(error) and str(error).partition(":")[0].endswith("e1")
            if code != errno.EIO:
                assert leftovers(good) == [], number
        failing.settle()
        good.settle()
        assert step_read(good) in (1, 2)
        good.save(state_at(2), epoch=1, step=2)
        assert step_read(good) == 2
        good.settle()


@pytest.mark.proves("a save of a checkpoint that fails leaves nothing")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("what", ["fallocate", "pwritev", "fsync", "close"])
def test_a_transport_that_fails_in_mid_save_leaves_nothing(tmp_path: Path, what: str, code: int) -> None:
    from dataclasses import replace

    from ebbtide.storage.memory.buffer_pool import BufferPool
    from ebbtide.storage.posix.posix_calls import SystemCalls

    good = make_run(tmp_path)
    good.save(state_at(1), epoch=1, step=1)
    real, count = getattr(SystemCalls(), what), 0

    def fail(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count < (3 if what == "pwritev" else 1):
            return real(*arguments)
        if what == "close":
            real(*arguments)
        raise OSError(code, "broken")

    calls = replace(SystemCalls(), **{what: fail})
    transport = PosixTransport(BufferPool(2, 16 << 10), threads=1, calls=calls)
    failing = make_run(tmp_path, transport=transport)
    with pytest.raises(NoRoom if code == errno.ENOSPC else TransferFailed, match=r"rank0\.safetensors"):
        failing.save(state_at(2), epoch=1, step=2)
    assert leftovers(good) == [] and step_read(good) == 1
    good.save(state_at(2), epoch=1, step=2)
    assert step_read(good) == 2


@pytest.mark.proves("names are durable before the rename")
def test_nothing_becomes_visible_before_it_would_survive_a_power_cut(tmp_path: Path) -> None:
    calls = CountedCalls()

    class Noted(PosixTransport):
        def write(self, path: Path, *arguments: Any, **more: Any) -> TransferReport:
            calls.note("create", path)
            calls.note("write", path)
            report = super().write(path, *arguments, **more)
            calls.note("fsync", path)
            return report

    run = make_run(tmp_path, disk=Disk(calls), transport=Noted(make_transport()._pool))
    run.save(state_at(1), epoch=1, step=1)
    run.settle()
    placed = run.paths.checkpoint(at("e1/step-1"))
    moves = [
        (number, path)
        for number, (what, path, target) in enumerate(calls.events)
        if (what, target) == ("rename", placed)
    ]
    [(place, work)] = moves
    assert {path for path in lost_by_a_power_cut(calls, place) if work in (path, *path.parents)} == set()
    assert not {path for path in lost_by_a_power_cut(calls, len(calls.events)) if placed in (path, *path.parents)}
    order = [path.name for what, path, _ in calls.events[:place] if what == "create" and path.parent == work]
    assert order[-2:] == ["manifest.json", "COMMIT"]


@pytest.mark.proves("a rename whose answer was lost is made durable")
def test_a_rename_whose_answer_was_lost_has_succeeded(tmp_path: Path) -> None:
    class Lost(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            super().rename(src, dst)
            if Path(dst).name == "step-1":
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    calls = Lost()
    run = make_run(tmp_path, disk=Disk(calls))
    run.save(state_at(1), epoch=1, step=1)
    assert step_read(run) == 1
    target = run.paths.checkpoint(at("e1/step-1"))
    [place] = [number for number, (_, _, there) in enumerate(calls.events) if there == target]
    assert ("fsync", target.parent, None) in calls.events[place:], "its place would survive a power cut"


def test_a_gang_that_was_replaced_hears_of_it_at_each_step_of_a_save(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    begun = run.saving(1, 2)
    entry = write(begun)
    make_run(tmp_path).begin_epoch(2)
    for attempt in (
        lambda: begun.commit([entry], TREE, About(1, {})),
        lambda: run.saving(1, 3).begin(10),
        lambda: run.save(state_at(4), epoch=1, step=4),
        lambda: run.begin_epoch(1),
    ):
        with pytest.raises(Superseded, match="epoch 2 has begun"):
            attempt()
    assert ids(run) == ["e1/step-1"]
    begun.drop()
    assert leftovers(run) == []


def test_a_gang_that_is_replaced_between_its_last_look_and_the_rename_writes_where_nobody_looks(tmp_path: Path) -> None:
    class Replaced(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            if Path(dst).name == "step-2":
                assert make_run(tmp_path).begin_epoch(2) == Start(at("e1/step-1"))
            super().rename(src, dst)

    make_run(tmp_path).save(state_at(1), epoch=1, step=1)
    stale = make_run(tmp_path, disk=Disk(Replaced()), keep=Retention(1))
    stale.save(state_at(2), epoch=1, step=2)
    stale.settle()
    fresh = make_run(tmp_path)
    assert [(str(one.id), one.counts) for one in fresh.list()] == [("e1/step-2", False), ("e1/step-1", True)]
    assert step_read(fresh) == 1
    with pytest.raises(Superseded):
        stale.save(state_at(3), epoch=1, step=3)
    fresh.save(state_at(3), epoch=2, step=3)
    fresh.settle()
    assert ids(fresh) == ["e2/step-3", "e1/step-1"], "what the stale one left is gone"


@pytest.mark.parametrize("when", ["before the file", "after the file"])
@pytest.mark.proves("what a later gang has cleared away is told as that")
def test_what_fails_because_a_later_gang_cleared_it_away_is_told_so(tmp_path: Path, when: str) -> None:
    class Cleared(PosixTransport):
        def write(self, *arguments: Any, **more: Any) -> TransferReport:
            report = super().write(*arguments, **more) if when == "after the file" else TransferReport({}, 0.0)
            later = make_run(tmp_path, grace_s=-1)
            later.save(state_at(3), epoch=2, step=3)
            later.settle()
            later.clean(2)
            return report if when == "after the file" else super().write(*arguments, **more)

    stale = make_run(tmp_path, transport=Cleared(make_transport()._pool, threads=2))
    with pytest.raises(Superseded, match="epoch 2 has begun"):
        stale.save(state_at(2), epoch=1, step=2)
    assert step_read(make_run(tmp_path)) == 3


@pytest.mark.proves("a commit looks for a later gang once more before its rename")
def test_a_gang_that_is_replaced_while_it_seals_commits_nothing(tmp_path: Path) -> None:
    class Replaced(CountedCalls):
        def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
            if Path(path).name == "COMMIT":
                make_run(tmp_path).begin_epoch(2)
            return super().open(path, flags, mode)

    with pytest.raises(Superseded):
        make_run(tmp_path, disk=Disk(Replaced())).save(state_at(1), epoch=1, step=1)
    assert ids(make_run(tmp_path)) == [] and leftovers(make_run(tmp_path)) == []


@pytest.mark.proves("a step that was committed stays as it is")
def test_a_step_that_is_committed_stays_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    before = (run.paths.checkpoint(at("e1/step-1")) / "COMMIT").stat()
    run.save({"other": 1}, epoch=1, step=1)
    saving = run.saving(1, 1)
    entry = write(saving)
    assert saving.commit([entry], TREE, About(1, {})) == at("e1/step-1")
    assert step_read(run) == 1 and leftovers(run) == []
    assert (run.paths.checkpoint(at("e1/step-1")) / "COMMIT").stat() == before


@pytest.mark.parametrize("damaged", ["COMMIT", "manifest.json", "rank0.safetensors", "rank0.safetensors.idx"])
@pytest.mark.proves("a damaged checkpoint of the same step makes way")
def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path: Path, damaged: str) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    (run.paths.checkpoint(at("e1/step-1")) / damaged).unlink()
    run.save(state_at(1), epoch=1, step=1)
    assert step_read(run) == 1


@pytest.mark.proves("what a failed save of this gang left is removed before the next one")
def test_the_next_save_removes_what_a_failed_one_of_the_same_gang_left(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run.saving(1, 1))
    assert leftovers(run) == [".reserved", ".tmp-step-1"]
    run.save(state_at(2), epoch=1, step=2)
    run.settle()
    assert leftovers(run) == []


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda work: (work / "rank0.safetensors").unlink(), Refused),
        (lambda work: (work / "rank0.safetensors").write_bytes(b"short"), Refused),
        (lambda work: (work / "rank0.safetensors.idx").write_bytes(b"other"), Corrupt),
        (lambda work: (work / "rank0.safetensors.idx").unlink(), Corrupt),
    ],
)
@pytest.mark.proves(
    "the file of each rank has its index of hashes when it is committed",
    "the file of each rank has its length when it is committed",
)
def test_a_file_that_is_not_as_its_rank_wrote_it_is_not_committed(tmp_path: Path, spoil: Any, error: Any) -> None:
    run = make_run(tmp_path)
    saving = run.saving(1, 1)
    entry = write(saving)
    spoil(run.paths.work(saving.id))
    with pytest.raises(error, match="rank0"):
        saving.commit([entry], TREE, About(1, {}))
    saving.drop()
    assert run.newest() is None and leftovers(run) == []


@pytest.mark.proves("what no rank wrote is not committed")
def test_what_does_not_belong_is_not_committed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    saving = run.saving(1, 1)
    entry = write(saving)
    (run.paths.work(saving.id) / "rank7.safetensors").write_bytes(b"of an attempt before")
    (run.paths.work(saving.id) / "folder").mkdir()
    saving.commit([entry], TREE, About(1, {}))
    names = {path.name for path in run.paths.checkpoint(saving.id).iterdir()}
    assert names == {
        "rank0.safetensors",
        "rank0.safetensors.idx",
        "state.json",
        "about.json",
        "manifest.json",
        "COMMIT",
    }


@pytest.mark.proves("each rank is in a checkpoint once")
def test_one_rank_twice_is_refused(tmp_path: Path) -> None:
    saving = make_run(tmp_path).saving(1, 1)
    entry = write(saving)
    with pytest.raises(Refused, match="two entries"):
        saving.commit([entry, entry], TREE, About(2, {}))
    other = RankEntry(1, FileEntry(name="rank0.safetensors", size_bytes=1, digest="0" * 64))
    with pytest.raises(Refused, match="two entries"):
        saving.commit([entry, other], TREE, About(2, {}))


@pytest.mark.proves(
    "a save is begun, committed and given up in this order only",
    "what is committed cannot be given up",
)
def test_every_stage_allows_only_its_edges(tmp_path: Path) -> None:
    saving = make_run(tmp_path).saving(1, 1)
    with pytest.raises(Refused, match="it should be begun"):
        saving.commit([], {}, About(1, {}))
    entry = write(saving)
    with pytest.raises(Refused, match="it should be new"):
        saving.begin(1)
    saving.commit([entry], TREE, About(1, {}))
    saving.drop()
    assert saving.stage is Stage.PLACED, "what is committed cannot be given up"
    assert EDGES[Stage.PLACED] == EDGES[Stage.DROPPED] == frozenset()


@pytest.mark.proves("the other ranks of a gang remove nothing when it fails")
def test_a_rank_that_gives_up_removes_nothing_of_the_rank_that_leads(tmp_path: Path) -> None:
    """It hears of a death at once, while the first rank has all that it needs and goes on to the rename."""
    run = make_run(tmp_path)
    leading, other = run.saving(1, 1), run.saving(1, 1)
    entry = write(leading)
    other.drop()
    leading.commit([entry], TREE, About(1, {}))
    with run.open(at("e1/step-1")) as opened:
        assert opened.read_state() is not None
    begun, other = run.saving(1, 2), run.saving(1, 2)
    write(begun)
    other.drop()
    begun.drop()
    assert leftovers(run) == [], "whoever made it removes it"


def test_a_checkpoint_of_nothing_is_one(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save({}, epoch=0, step=0)
    with run.open(at("e0/step-0")) as opened:
        assert opened.read_state() == {}


@pytest.mark.proves("a work directory that is gone is told, and moves nothing away")
def test_a_work_directory_that_was_taken_away_is_told(tmp_path: Path) -> None:
    class Taken(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            if Path(dst).name == "step-1":
                Path(src).rename(Path(src).with_name(".tmp-removed-1.x"))
            super().rename(src, dst)

    with pytest.raises(TransferFailed, match="was taken away"):
        make_run(tmp_path, disk=Disk(Taken())).save(state_at(1), epoch=1, step=1)
