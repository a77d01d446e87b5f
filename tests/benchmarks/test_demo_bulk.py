"""What a run of the demo leaves is read back, and damage ends it."""

from pathlib import Path

import pytest

from benchmarks.demo.bulk import read_back
from benchmarks.pool_run import RunFailed
from tests.platform.storage.checkpoints.runs import RUN, make_run, state_at
from tests.platform.storage.stores import overwrite, publish_model, store_at


def test_models_and_the_newest_checkpoint_are_read_back_and_damage_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    shared = tmp_path / "shared"
    shared.mkdir()
    with pytest.raises(RunFailed, match="models verify --all"):
        read_back(shared, RUN)
    model = publish_model(store_at(shared / "store"))
    run = make_run(shared)
    run.begin_epoch(1)
    run.save(state_at(1), epoch=1, step=1)
    run.settle()
    found = read_back(shared, RUN)
    assert (found["models"], found["checkpoint"], found["damaged"]) == (1, "e1/step-1", 0)
    assert found["model_bytes"] > 0 and found["checkpoint_bytes"] > 0
    file = shared / "store" / "objects" / model / "model.safetensors"
    overwrite(file, file.stat().st_size - 8, b"\x5a\xa5\x5a")
    with pytest.raises(RunFailed, match=r"models verify --all.* ended with 1"):
        read_back(shared, RUN)
