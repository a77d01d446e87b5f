"""Gangs of real processes: any number of ranks load what any number saved; and ranks die, fail or stand still."""

import errno
import itertools
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.storage.checkpoints.manager.verification import verify
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from tests.builders.checkpoints import flip
from tests.hunts import spread
from tests.platform.storage.checkpoints.gangs import Gangs
from tests.platform.storage.checkpoints.runs import at, ids, leftovers, make_run

_meetings = itertools.count()


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    with Gangs() as found:
        yield found


def meeting(tmp_path: Path) -> Path:
    """A new place to meet: a used one is spoilt."""
    tmp_path.mkdir(exist_ok=True)
    return tmp_path / f"meeting-{next(_meetings)}"


def save(gangs: Gangs, tmp_path: Path, world: int, epoch: int, *steps: int, **more: object) -> list[list[str]]:
    return gangs.run("save", world, root=tmp_path, rendezvous=meeting(tmp_path), epoch=epoch, steps=steps, **more)


def load(gangs: Gangs, tmp_path: Path, world: int, *, stock: bool = False) -> list[dict[str, int]]:
    return gangs.run("load", world, root=tmp_path, rendezvous=meeting(tmp_path), stock=stock)


@pytest.mark.parametrize("saved_by", [2, 3])
def test_what_some_ranks_saved_any_number_loads_to_the_bit(gangs: Gangs, tmp_path: Path, saved_by: int) -> None:
    """Rows, columns, uneven, fewer rows than ranks, replicated, nested, no tensors: `gang_scenarios.LAYOUT`."""
    files = save(gangs, tmp_path, saved_by, 1, 7)
    assert files[0] == [f"rank{rank}.safetensors" for rank in range(saved_by)]
    assert gangs.run("load_alone", 1, root=tmp_path) == [7]
    for world in (1, 2, 3):
        for stock in (False, True):
            found = load(gangs, tmp_path, world, stock=stock)
            assert [one["step"] for one in found] == [7] * world
    run = make_run(tmp_path)
    assert verify(run, at("e1/step-7")) == []
    [listed] = run.list()
    assert listed.about is not None and (listed.about.ranks, listed.about.note) == (saved_by, {"step": 7})


def test_ranks_without_any_group_save_in_two_phases(gangs: Gangs, tmp_path: Path) -> None:
    names = gangs.run("save_without_group", 3, root=tmp_path, epoch=1, step=7)
    assert names[0] == names[1] == names[2] and "rank2.safetensors.idx" in names[0]
    assert leftovers(make_run(tmp_path)) == []


def test_each_rank_reads_its_share_and_not_much_more(gangs: Gangs, tmp_path: Path) -> None:
    save(gangs, tmp_path, 2, 1, 7)
    total = sum(path.stat().st_size for path in (tmp_path / "train").rglob("*.safetensors"))
    [alone] = load(gangs, tmp_path, 1)
    assert alone["bytes"] <= total
    shares = [one["bytes"] for one in load(gangs, tmp_path, 3)]
    # Of some 200 KB about 20 KB are wanted by all, and each of ten tensors may cost two chunks of 4 KiB too much.
    assert max(shares) < 0.75 * total, (shares, total)


def test_what_is_replicated_is_written_once(gangs: Gangs, tmp_path: Path) -> None:
    save(gangs, tmp_path, 2, 1, 7)
    save(gangs, tmp_path, 1, 2, 7)
    sizes = {
        epoch: sum(path.stat().st_size for path in (tmp_path / "train" / "tide" / epoch).rglob("*.safetensors"))
        for epoch in ("e1", "e2")
    }
    assert abs(sizes["e1"] - sizes["e2"]) <= 2 * 4096, "one header more, and no tensor twice"


def test_plans_that_pytorch_has_cached_are_written_into_the_right_step(gangs: Gangs, tmp_path: Path) -> None:
    save(gangs, tmp_path, 2, 1, 1, 2, 3, caching=True)
    assert ids(make_run(tmp_path)) == ["e1/step-3", "e1/step-2"]
    assert [one["step"] for one in load(gangs, tmp_path, 3)] == [3, 3, 3]


# ---- dying


# Of the first rank: directories, reservation, chunks, file, index, state, manifest, COMMIT, rename, syncs, removals;
# of the second: chunks, its file, its index.
EDGES = [(0, number) for number in (*range(1, 12, 2), *range(12, 50, 3))] + [(1, number) for number in range(1, 12, 2)]
PARTS = 10  # so that no test takes long on a busy machine


@pytest.mark.parametrize("part", spread(range(PARTS), short=2))
def test_a_rank_that_is_killed_at_any_change_leaves_the_checkpoint_before(
    gangs: Gangs, tmp_path: Path, part: int
) -> None:
    """1. step 1 is committed; 2. in epoch 2 one rank dies in mid-save; 3. step 1 or 2 is read, and epoch 3 saves."""
    save(gangs, tmp_path / "before", 2, 1, 1)
    deaths = []
    for victim, number in EDGES[part::PARTS]:
        root = tmp_path / f"{victim}-{number}"
        shutil.copytree(tmp_path / "before", root)
        broken = {"root": root, "rendezvous": meeting(root), "epoch": 2, "step": 2, "victim": victim, "before": number}
        ends = gangs.start("save_and_break", 2, **broken).ends()
        died = ends[victim]["event"] == "died"
        [[read, then]] = gangs.run("look_and_save", 1, root=root, rendezvous=meeting(root), epoch=3, step=3)
        assert then == 3 and (read == 2 or died), (victim, number)
        if died and victim == 1:
            assert read == 1, "the last that it does comes before the commit"
        if died and read == 1:
            other = ends[1 - victim]
            assert other["event"] == "returned" and other["value"]["outcome"].startswith("RuntimeError"), other
        run = make_run(root)
        assert leftovers(run) == [] and ids(run)[0] == "e3/step-3", (victim, number)
        if died:
            deaths.append(read)
    assert 1 in deaths


@pytest.mark.parametrize(("victim", "before"), [(0, 4), (0, 8), (0, 14), (1, 1), (1, 3), (1, 6)])
def test_a_full_disk_on_any_rank_is_told_to_all_and_leaves_nothing(
    gangs: Gangs, tmp_path: Path, victim: int, before: int
) -> None:
    save(gangs, tmp_path, 2, 1, 1)
    broken = {"root": tmp_path, "epoch": 2, "step": 2, "code": errno.ENOSPC, "victim": victim, "before": before}
    ends = gangs.run("save_and_break", 2, **broken, rendezvous=meeting(tmp_path), lasts=True)
    told = [one["outcome"] for one in ends]
    assert told[0] == told[1] and told[0].startswith("NoRoom"), told
    assert leftovers(make_run(tmp_path)) == []
    assert gangs.run("look_and_save", 2, root=tmp_path, rendezvous=meeting(tmp_path), epoch=2, step=2) == [[1, 2]] * 2


@pytest.mark.parametrize(("victim", "before"), [(0, 4), (1, 3)])
@pytest.mark.proves("a full disk is cleaned before all ranks of a gang fail")
def test_a_disk_that_has_room_again_after_a_cleaning_is_written_once_more_by_all(
    gangs: Gangs, tmp_path: Path, victim: int, before: int
) -> None:
    save(gangs, tmp_path, 2, 1, 1)
    broken = {"root": tmp_path, "epoch": 2, "step": 2, "code": errno.ENOSPC, "victim": victim, "before": before}
    ends = gangs.run("save_and_break", 2, **broken, rendezvous=meeting(tmp_path))
    assert [one["outcome"] for one in ends] == ["committed", "committed"]
    assert verify(make_run(tmp_path), at("e2/step-2")) == [] and leftovers(make_run(tmp_path)) == []


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.proves("a gang that fails leaves nothing")
def test_what_one_rank_cannot_keep_is_told_to_all(gangs: Gangs, tmp_path: Path, victim: int) -> None:
    """PyTorch may give the object to either rank, so both have it, or the one that has it must fail for all."""
    save(gangs, tmp_path, 2, 1, 1)
    told = gangs.run("fail_on_one_rank", 2, root=tmp_path, rendezvous=meeting(tmp_path), victim=victim, how="save")
    assert told[0] == told[1]
    assert told[0] == "fine" or (told[0].startswith("Refused") and "sampler.name is a object" in told[0])
    assert leftovers(make_run(tmp_path)) == []


def test_damage_that_only_one_rank_reads_is_corrupt_there_and_names_the_place(gangs: Gangs, tmp_path: Path) -> None:
    save(gangs, tmp_path, 2, 1, 1)
    run = make_run(tmp_path)
    with run.open(CheckpointId(1, 1)) as opened:
        part = opened.tensor("model.rows").parts[1]  # of the second rank
    path = run.paths.checkpoint(CheckpointId(1, 1)) / part.file
    flip(path, (part.at + part.end) // 2)
    told = gangs.run("fail_on_one_rank", 2, root=tmp_path, rendezvous=meeting(tmp_path), victim=0, how="load")
    assert [one.startswith("Corrupt") for one in told].count(True) >= 1
    assert "rank1.safetensors at byte" in told[1] and str(path) in told[1]


# ---- standing still


@pytest.mark.parametrize(
    ("where", "grace_s", "outcomes"),
    [
        ("in mid-write", 900, ["Superseded", "Superseded"]),
        ("in mid-write", -1, ["Superseded", "Superseded"]),  # its work directory was removed under it
        ("before the rename", 900, ["committed", "Superseded"]),  # after its last look, so it finishes
        ("before the rename", -1, ["Superseded", "Superseded"]),
    ],
)
def test_a_gang_that_stood_still_while_it_was_replaced_writes_where_nobody_looks(
    gangs: Gangs, tmp_path: Path, where: str, grace_s: int, outcomes: list[str]
) -> None:
    """1. Epoch 1 commits step 1 and stops (SIGSTOP) in the save of step 2; 2. epoch 2 starts elsewhere with three
    ranks, loads step 1 and commits steps 2 and 3; 3. the old gang goes on (SIGCONT): it may finish, is told that it
    was replaced, and nobody reads what it has written."""
    save(gangs, tmp_path, 2, 1, 1)
    slow = {
        "root": tmp_path,
        "rendezvous": meeting(tmp_path),
        "steps": [2, 3],
        "pause_at": where,
        "go": tmp_path / "go",
    }
    old = gangs.start("save_slowly", 2, **slow)
    old.wait_for("paused", count=2 if where == "in mid-write" else 1)
    old.signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert load(gangs, tmp_path, 3)[0]["step"] == 1
    save(gangs, tmp_path, 3, 2, 2, 3, grace_s=grace_s)
    before = ids(make_run(tmp_path))
    old.signal(signal.SIGCONT)
    assert old.values() == [outcomes, outcomes]
    run = make_run(tmp_path)
    listed = run.list()
    assert [str(one.id) for one in listed if str(one.id) not in before] == ["e1/step-2"] * outcomes.count("committed")
    assert {str(one.id): one.counts for one in listed} == {
        "e2/step-3": True,
        "e2/step-2": True,
        **({"e1/step-2": False} if "committed" in outcomes else {}),
    }
    assert [one["step"] for one in load(gangs, tmp_path, 2)] == [3, 3]
    save(gangs, tmp_path, 2, 3, 4)
    assert ids(run) == ["e3/step-4", "e2/step-3"] and leftovers(run) == [], "what the old gang left is gone"
