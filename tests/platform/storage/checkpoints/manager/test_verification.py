"""All damage of a checkpoint is listed."""

from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.checkpoints.manager.verification import verify
from ebbtide.storage.errors import Corrupt, NotPublished
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.builders.checkpoints import flip
from tests.platform.storage.checkpoints.runs import CHUNK, CountedReads, at, make_run, make_transport, state_at
from tests.platform.storage.stores import LocalLeases

STEP = at("e1/step-1")


def test_a_whole_one_has_none(tmp_path: Path) -> None:
    leases = LocalLeases()
    run = make_run(tmp_path, leases=leases)
    run.save(state_at(1), epoch=1, step=1)
    assert verify(run, STEP) == []
    assert leases.present() == frozenset()


@pytest.mark.proves("a checkpoint that is verified is held meanwhile")
def test_what_is_verified_is_held_meanwhile(tmp_path: Path) -> None:
    leases, seen = LocalLeases(), list[frozenset[str]]()

    class Seen(CountedReads):
        def read(self, *arguments: Any, **more: Any) -> TransferReport:
            seen.append(leases.present())
            return super().read(*arguments, **more)

    run = make_run(tmp_path, leases=leases, transport=Seen(make_transport()))
    run.save(state_at(1), epoch=1, step=1)
    run.settle()
    seen.clear()
    assert verify(run, STEP) == []
    assert set(seen) == {frozenset({"checkpoint-e1-step-1"})} and leases.present() == frozenset()


def test_all_damage_is_found(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    directory = run.paths.checkpoint(STEP)
    flip(directory / "rank0.safetensors", 100)
    flip(directory / "rank0.safetensors", 3 * CHUNK + 1)
    flip(directory / "about.json", 3)
    found = {(one.file, one.part.offset if one.part else -1) for one in verify(run, STEP)}
    assert found == {("rank0.safetensors", 0), ("rank0.safetensors", 3 * CHUNK), ("about.json", 0)}


def test_missing_and_short_files_are_damage(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    directory = run.paths.checkpoint(STEP)
    (directory / "rank0.safetensors.idx").unlink()
    (directory / "state.json").unlink()
    assert {one.file for one in verify(run, STEP)} == {"rank0.safetensors", "state.json"}


def test_one_of_which_nobody_can_tell_what_it_should_be_is_corrupt(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(NotPublished):
        verify(run, STEP)
    run.save(state_at(1), epoch=1, step=1)
    (run.paths.checkpoint(STEP) / "manifest.json").write_text("{}")
    with pytest.raises(Corrupt, match=r"manifest\.json"):
        verify(run, STEP)


@pytest.mark.proves("verifying compares the index with the headers of the files")
def test_an_index_of_tensors_that_contradicts_the_file_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of a writer: all hashes are right, and the tensors are not where they should be."""
    from ebbtide.storage.checkpoints.state import rank_file
    from ebbtide.storage.checkpoints.state.rank_entry import Piece

    plain = rank_file._pieces

    def shifted(*arguments: object) -> tuple[Piece, ...]:
        pieces = plain(*arguments)  # type: ignore[arg-type]
        first = pieces[0]
        return (Piece(first.name, first.dtype, first.shape, first.offsets, first.sizes, first.at - 4), *pieces[1:])

    monkeypatch.setattr(rank_file, "_pieces", shifted)
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    [damage] = verify(run, STEP)
    assert damage.file == "state.json" and "'model.weight' [0:40,0:129] should be" in damage.what
