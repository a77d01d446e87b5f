"""What is seen in a run's directory, and what is not."""

import json
from pathlib import Path

import pytest

from ebbtide.storage.checkpoints.run_directory.lineage import Claim, EpochFound, Start
from ebbtide.storage.checkpoints.run_directory.run_paths import RunPaths, run_paths
from ebbtide.storage.checkpoints.run_directory.run_survey import (
    begin_epoch,
    check_epoch,
    look,
    newest_of,
    read_start,
    temporaries,
)
from ebbtide.storage.errors import Corrupt, Refused, Superseded
from ebbtide.storage.files.durable_files import Disk
from tests.platform.storage.checkpoints.runs import at


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = run_paths(tmp_path, "tide")
    found.directory.mkdir(parents=True)
    return found


def commit(paths: RunPaths, text: str) -> None:
    directory = paths.checkpoint(at(text))
    directory.mkdir(parents=True)
    (directory / "COMMIT").write_text("")


def test_a_run_of_which_there_is_nothing_has_nothing(tmp_path: Path) -> None:
    paths = run_paths(tmp_path, "nobody")
    assert look(paths) == [] and newest_of(paths) is None
    check_epoch(paths, 0)


@pytest.mark.proves("a link is no checkpoint", "only what has a COMMIT is a checkpoint")
def test_only_committed_ones_are_seen(paths: RunPaths) -> None:
    commit(paths, "e1/step-3")
    for name in (".tmp-step-9", "step-4", "step-05", "step-x", "other"):
        (paths.epoch(1) / name).mkdir()
    (paths.epoch(1) / ".tmp-step-9" / "COMMIT").write_text("")
    (paths.epoch(1) / "step-05" / "COMMIT").write_text("")
    (paths.epoch(1) / "step-6").write_text("a file")
    (paths.epoch(1) / "step-7").symlink_to("step-3")
    (paths.directory / "e02").mkdir()
    (paths.directory / "e3").write_text("a file")
    (paths.directory / "steps-0.log").write_text("of the session")
    assert look(paths) == [EpochFound(1, frozenset({3})), EpochFound(3)]
    assert newest_of(paths) == at("e1/step-3")
    assert [path.name for _, path in temporaries(paths)] == [".tmp-step-9"]


@pytest.mark.proves("what a gang has said of its beginning stays")
def test_an_epoch_says_from_where_it_goes_on(paths: RunPaths) -> None:
    assert begin_epoch(paths, Disk(), 1) == Start(None)
    commit(paths, "e1/step-3")
    assert begin_epoch(paths, Disk(), 4) == Start(at("e1/step-3"))
    commit(paths, "e1/step-9")  # late
    assert newest_of(paths) == at("e1/step-3")
    assert begin_epoch(paths, Disk(), 4) == Start(at("e1/step-3")), "what was said stays"
    assert begin_epoch(paths, Disk(), 6, Start(None)) == Start(None)
    assert newest_of(paths) is None


@pytest.mark.proves("a gang goes on from what is below its own epoch")
def test_a_gang_whose_word_was_lost_goes_on_from_what_was_before_it(paths: RunPaths) -> None:
    commit(paths, "e1/step-3")
    commit(paths, "e4/step-7")
    assert begin_epoch(paths, Disk(), 4) == Start(at("e1/step-3"))


@pytest.mark.proves("the directory of an epoch is there before its gang looks for the newest")
def test_the_directory_is_there_before_the_look(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a gang that removes old checkpoints could miss it, and remove what this one is about to go on from."""
    from ebbtide.storage.checkpoints.run_directory import run_survey

    def spied(paths: RunPaths) -> list[EpochFound]:
        assert paths.epoch(2).is_dir()
        return look(paths)

    monkeypatch.setattr(run_survey, "look", spied)
    begin_epoch(paths, Disk(), 2)


@pytest.mark.proves(
    "a later epoch is one with a directory, whatever is in it",
    "no gang and no save begins once a later gang has begun",
)
def test_a_gang_that_was_replaced_cannot_begin(paths: RunPaths) -> None:
    begin_epoch(paths, Disk(), 3)
    for attempt in (lambda: begin_epoch(paths, Disk(), 2), lambda: check_epoch(paths, 2)):
        with pytest.raises(Superseded, match="epoch 3 has begun"):
            attempt()
    assert not paths.epoch(2).exists()
    check_epoch(paths, 3)


@pytest.mark.proves("a gang that is replaced while it begins hears of it")
def test_a_gang_that_is_replaced_while_it_begins_hears_of_it(paths: RunPaths) -> None:
    class Slow(Disk):
        def replace(self, path: Path, data: bytes) -> None:
            begin_epoch(paths, Disk(), 3)
            super().replace(path, data)

    with pytest.raises(Superseded):
        begin_epoch(paths, Slow(), 2)


@pytest.mark.proves(
    "a gang of another ledger that has chosen the same epoch is turned away",
    "a gang of another ledger that said the same epoch just after this one is seen",
)
def test_two_gangs_of_one_epoch_are_told_apart_by_their_leases(paths: RunPaths) -> None:
    """One chose its epoch, stood still while the pool was made anew and the job went on, and goes on now."""
    old, young = Claim("old", 58), Claim("young", 3)
    begin_epoch(paths, Disk(), 58, claim=young)
    with pytest.raises(Superseded, match="lease 3 of ledger young"):
        begin_epoch(paths, Disk(), 58, claim=old)
    assert begin_epoch(paths, Disk(), 58, claim=young) == Start(None), "what was said stays"

    class Both(Disk):
        def replace(self, path: Path, data: bytes) -> None:
            super().replace(path, data.replace(b'"old"', b'"young"'))  # the other one, just after this one

    with pytest.raises(Superseded, match="ledger young"):
        begin_epoch(paths, Both(), 59, claim=old)


@pytest.mark.parametrize("origin", ["e3/step-1", "e2/step-1"])
@pytest.mark.proves("no gang can be made to go on from its own or a later epoch")
def test_nothing_goes_on_from_its_own_or_a_later_epoch(paths: RunPaths, origin: str) -> None:
    with pytest.raises(Refused, match="higher epoch"):
        begin_epoch(paths, Disk(), 2, Start(at(origin)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"schema": 2}, Refused),
        ({"schema": 0}, Corrupt),
        ({"run": "other"}, Corrupt),
        ({"epoch": 3}, Corrupt),
        ({"from": 3}, Corrupt),
        ({"from": "e1"}, Corrupt),
        ({"from": "e4/step-1"}, Corrupt),
        ({"from": "e9/step-1"}, Corrupt),
    ],
)
@pytest.mark.proves(
    "a start that makes no sense is never passed over",
    "no gang has gone on from its own or a later epoch",
)
def test_a_start_that_makes_no_sense_is_never_passed_over(
    paths: RunPaths, change: dict[str, object], error: type[Exception]
) -> None:
    fields = {"schema": 1, "run": "tide", "epoch": 4, "from": "e1/step-1"}
    paths.epoch(4).mkdir()
    paths.start(4).write_text(json.dumps(fields))
    assert read_start(paths, 4) == Start(at("e1/step-1"))
    paths.start(4).write_text(json.dumps(fields | change))
    with pytest.raises(error, match=r"e4/start\.json"):
        newest_of(paths)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"schema": 1}', "x" * 5000])
def test_a_torn_start_is_corrupt(paths: RunPaths, text: str) -> None:
    paths.epoch(4).mkdir()
    paths.start(4).write_text(text)
    with pytest.raises(Corrupt, match=r"start\.json"):
        look(paths)
