"""A checkpoint that all ranks write: what fails on one of them, all hear of, and the commit before still counts."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.errors import NoRoom, Superseded, TransferFailed
from ebbtide_train.session.checkpoints import sharded_checkpoint
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.checkpoints.sharded_checkpoint import parts_of
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.errors import CheckpointFailed, CommitHopeless

pytestmark = pytest.mark.timeout(60)
WORLD = 3
WEIGHTS = torch.arange(12.0).view(3, 4)
STATE = {"model": {"w": WEIGHTS}, "betas": (0.9, 0.999), "milestones": {30: 1}}


class Threads(Group):
    """A group whose ranks are threads."""

    def __init__(self, rank: int, met: threading.Barrier, boxes: list[Any]) -> None:
        self.rank, self.world = rank, WORLD
        self._met, self._boxes = met, boxes

    def _exchange(self, value: Any) -> list[Any]:
        self._boxes[self.rank] = value
        self._met.wait(20.0)
        found = list(self._boxes)
        self._met.wait(20.0)
        return found

    def max_of(self, values: Sequence[int]) -> list[int]:
        return [max(each) for each in zip(*self._exchange(list(values)), strict=True)]

    def gather(self, data: torch.Tensor) -> list[torch.Tensor]:
        return self._exchange(data)


def on_all(run_dir: Path, ref: Ref) -> list[Exception | None]:
    """What each rank gets from its save."""
    met, boxes = threading.Barrier(WORLD), [None] * WORLD
    errors: list[Exception | None] = [None] * WORLD

    def one(rank: int) -> None:
        store = CheckpointStore(run_dir)
        try:
            group = Threads(rank, met, boxes)
            store.publish_together(group, parts_of(STATE, group), ref)
        except (CheckpointFailed, threading.BrokenBarrierError) as error:
            errors[rank] = error
        store.settle()

    ranks = [threading.Thread(target=one, args=(rank,)) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return errors


def ref_of(step: int) -> Ref:
    return Ref(step=step, epoch=5, world=WORLD, seed=0, global_batch=6, dataset_len=97)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    store = CheckpointStore(tmp_path / "job")
    store.begin(5)
    store.close()
    assert on_all(tmp_path / "job", ref_of(1)) == [None] * WORLD
    return tmp_path / "job"


def failing(monkeypatch: pytest.MonkeyPatch, rank: int, errors: list[Exception]) -> None:
    """The writes of one rank fail so, one after the other."""
    plain = sharded_checkpoint.write_shards  # type: ignore[attr-defined]  # it is where it is used that it must fail

    def write(staging: Any, of: int, shards: Any) -> Any:
        if of == rank and errors:
            raise errors.pop(0)
        return plain(staging, of, shards)

    monkeypatch.setattr(sharded_checkpoint, "write_shards", write)


def newest(run_dir: Path) -> int:
    found = CheckpointStore(run_dir).newest()
    assert found is not None
    return found.step


def test_what_is_committed_together_is_read_back_as_it_was(run_dir: Path) -> None:
    state: Any = CheckpointStore(run_dir).load(ref_of(1))
    assert torch.equal(state["model"]["w"], WEIGHTS)
    assert state["betas"] == (0.9, 0.999) and state["milestones"] == {30: 1}


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TransferFailed("write", Path("/shared/x"), errno=5, hint="ask the server"), CheckpointFailed),
        (ValueError("a bug"), CheckpointFailed),
        (Superseded("a later gang has begun"), CommitHopeless),
    ],
)
def test_what_fails_on_one_rank_fails_on_all_for_the_same_reason(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, rank: int, error: Exception, kind: type[Exception]
) -> None:
    failing(monkeypatch, rank, [error])
    got = on_all(run_dir, ref_of(2))
    assert {type(one) for one in got} == {kind} and len({str(one) for one in got}) == 1
    assert f"rank {rank}: " in str(got[0]) and newest(run_dir) == 1
    assert on_all(run_dir, ref_of(2)) == [None] * WORLD and newest(run_dir) == 2


def test_if_one_rank_finds_no_room_the_first_makes_some_and_all_try_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(RunCheckpoints, "make_room", lambda self, epoch: made.append(epoch))
    failing(monkeypatch, 2, [NoRoom("full")])
    assert on_all(run_dir, ref_of(2)) == [None] * WORLD
    assert made == [5] and newest(run_dir) == 2
    failing(monkeypatch, 2, [NoRoom("full"), NoRoom("still full")])
    got = on_all(run_dir, ref_of(3))
    assert all(isinstance(one, CheckpointFailed) and "still full" in str(one) for one in got)
    assert newest(run_dir) == 2
