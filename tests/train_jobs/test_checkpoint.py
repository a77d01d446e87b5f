"""Portable checkpoints and their commit."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from ebbtide_train.session import checkpoint as checkpoint_module
from ebbtide_train.session.checkpoint import CheckpointStore
from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch
from ebbtide_train.session.ref import Ref


def publish(store: CheckpointStore, step: int, *, epoch: int = 1) -> Ref:
    return store.publish(
        {"x": torch.full((4,), float(step)), "step": step, "tied": torch.ones(8)[2:5]},
        step=step,
        world=1,
        lease_epoch=epoch,
        seed=0,
        global_batch=4,
        dataset_len=10,
    )


def loaded(store: CheckpointStore) -> float:
    ref = store.read_ref()
    assert ref is not None
    value = store.load(ref)["x"]
    assert isinstance(value, torch.Tensor)
    assert value.untyped_storage().resizable()
    return float(value[0])


def test_the_newest_commit_is_read_and_the_last_two_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.read_ref() is None
    for step in (1, 2, 3, 4):
        publish(store, step)
    assert loaded(store) == 4
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == ["step-3-e1", "step-4-e1"]


def test_a_torn_checkpoint_is_never_read_and_is_swept_later(tmp_path: Path) -> None:
    """1. commit; 2. crash in the middle of writing; 3. crash between rename and commit; 4. the next commit sweeps."""
    store = CheckpointStore(tmp_path)
    publish(store, 1)
    (tmp_path / "ckpt" / ".tmp-step-2-e1-77").mkdir()
    (tmp_path / "ckpt" / ".tmp-step-2-e1-77" / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "ckpt" / "step-9-e1").mkdir()
    (tmp_path / "ckpt" / "step-9-e1" / "state.json").write_text("{")
    assert loaded(store) == 1
    publish(store, 2)
    publish(store, 3)
    publish(store, 9)
    assert loaded(store) == 9
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == ["step-3-e1", "step-9-e1"]


@pytest.mark.parametrize("dies_at", ["rename", "fsync"])
def test_a_death_before_the_commit_leaves_the_commit_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    store = CheckpointStore(tmp_path)
    publish(store, 1)
    owner: object = Path if dies_at == "rename" else os

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, dies_at, fail)
    with pytest.raises(CheckpointFailed, match="No space left"):
        publish(store, 2)
    monkeypatch.undo()
    assert loaded(store) == 1
    publish(store, 2)
    assert loaded(store) == 2


def test_nothing_is_committed_before_it_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    publish(store, 1)
    plain_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name.startswith(".tmp-"):
            raise OSError(5, "Input/output error")
        return plain_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(CheckpointFailed, match="Input/output"):
        publish(store, 2)
    assert loaded(store) == 1


def test_a_gang_of_the_past_cannot_take_the_job_back(tmp_path: Path) -> None:
    """Its rank 0 was stopped in mid-commit, its gang was replaced, and now it goes on."""
    about = {"world": 1, "seed": 0, "global_batch": 1, "dataset_len": 1}
    old, new = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    assert old.read_ref() is None
    old.publish({"x": 1}, step=3, lease_epoch=5, **about)
    assert new.read_ref() is not None
    newest = new.publish({"x": 2}, step=9, lease_epoch=6, **about)
    with pytest.raises(CheckpointFailed, match="this one is of the past"):
        old.publish({"x": 3}, step=4, lease_epoch=5, **about)
    assert CheckpointStore(tmp_path).read_ref() == newest
    assert CheckpointStore(tmp_path).load(newest) == {"x": 2}


def test_a_failed_write_leaves_no_bytes_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "_write_synced", no_space)
    with pytest.raises(CheckpointFailed, match="No space left"):
        CheckpointStore(tmp_path).publish(
            {"x": torch.zeros(10)}, step=3, lease_epoch=5, world=1, seed=0, global_batch=1, dataset_len=1
        )
    assert list((tmp_path / "ckpt").iterdir()) == []


def test_publishing_the_same_step_again_keeps_a_readable_commit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    publish(store, 1)
    publish(store, 1)
    assert loaded(store) == 1


def test_a_planted_index_cannot_run_code(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    ref = publish(store, 1)

    class Planted:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / ref.checkpoint / ".metadata").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        store.load(ref)
    assert not (tmp_path / "ran").exists()


def test_no_tensor_file_is_loaded_with_pickle(tmp_path: Path) -> None:
    """Everything that is not a tensor lies in JSON."""
    ref = publish(CheckpointStore(tmp_path), 1)
    index = json.loads((tmp_path / ref.checkpoint / "state.json").read_text())
    assert index == {
        "x": {"$tensor": "state.x"},
        "step": 1,
        "tied": {"$tensor": "state.tied"},
    }


@pytest.mark.parametrize("text", ["", "{}", '{"step": 1}', "null"])
def test_a_broken_ref_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "ref.json").write_text(text)
    with pytest.raises(CheckpointMismatch, match=r"ref\.json"):
        CheckpointStore(tmp_path).read_ref()
