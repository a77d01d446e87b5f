"""Following the published checkpoint without ever waiting for the disk."""

import threading
from pathlib import Path

import pytest

from ebbtide_train.controller import checkpoint_watch
from ebbtide_train.controller.checkpoint_watch import DurableWatch
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore


@pytest.mark.proves("a look tells of commits made just before it")
def test_a_look_tells_of_a_commit_made_just_before_it(tmp_path: Path) -> None:
    told: list[int] = []
    watch = DurableWatch(tmp_path, told.append, every_s=3600.0)
    watch.start()
    store = CheckpointStore(tmp_path)
    try:
        assert watch.look(10.0) and told[-1] == 0
        store.begin(1)
        store.publish({}, Ref(step=7, epoch=1, world=1, seed=0, global_batch=1, dataset_len=1))
        assert watch.look(10.0) and told[-1] == 7
        (tmp_path / "e1" / "start.json").write_text("rubbish")
        assert watch.look(10.0) and told[-1] == 7, "what was known stays"
    finally:
        watch.stop()
        store.settle()


def test_a_directory_that_hangs_holds_up_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()

    def hangs(run_dir: Path) -> None:
        hang.wait(30)

    monkeypatch.setattr(checkpoint_watch, "durable_step", hangs)
    watch = DurableWatch(tmp_path, lambda step: None, every_s=3600.0)
    watch.start()
    assert not watch.look(0.05)
    hang.set()
    watch.stop()
