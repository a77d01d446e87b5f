"""Where ranks meet, and what is left there."""

from dataclasses import replace
from pathlib import Path

from ebbtide_train.session.coordination.rendezvous import folder_of, sweep
from ebbtide_train.session.settings import SessionSettings
from tests.train_jobs import gangs


def settings(run_dir: Path, *, epoch: int, incarnation: str = "b", root: Path | None = None) -> SessionSettings:
    found = gangs.plan_of(run_dir, world=1, epoch=epoch).settings(0)
    return replace(found, incarnation=incarnation, meeting_root=root)


def test_ranks_of_one_node_meet_on_that_node_and_others_on_the_shared_directory(tmp_path: Path) -> None:
    assert folder_of(settings(tmp_path, epoch=1)) == tmp_path / "rendezvous" / "b"
    assert folder_of(settings(tmp_path, epoch=1, root=tmp_path / "node")) == tmp_path / "node" / "b"


def test_a_new_gang_sweeps_what_earlier_ones_left_and_nothing_else(tmp_path: Path) -> None:
    """A FileStore that was used once is spoilt; and a ledger that began anew gives the same epochs again."""
    mine = folder_of(settings(tmp_path, epoch=7))
    other = folder_of(settings(tmp_path, epoch=7, incarnation="a"))
    for folder in (mine, other):
        folder.mkdir(parents=True)
        for name in ("6-0", "7-0", "8-0", "word-6-3.json", "word-7-1.json", "off-6-1-0", "off-7-1-0", "notes"):
            (folder / name).touch()
    sweep(settings(tmp_path, epoch=7))
    assert sorted(path.name for path in mine.iterdir()) == ["7-0", "8-0", "notes", "off-7-1-0", "word-7-1.json"]
    assert not other.exists()


def test_there_may_be_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(settings(tmp_path, epoch=1, root=tmp_path / "none"))
