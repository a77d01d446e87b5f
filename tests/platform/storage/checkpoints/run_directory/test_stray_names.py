"""What other systems leave in a run's directory is theirs."""

import os
from pathlib import Path

import pytest

from ebbtide.storage.checkpoints.run_directory.run_paths import TEMPORARY
from tests.platform.storage.checkpoints.runs import make_run, state_at


@pytest.mark.proves("what others put into an epoch is not removed")
def test_what_other_systems_left_in_an_epoch_stays(tmp_path: Path) -> None:
    run = make_run(tmp_path, grace_s=100)
    run.save(state_at(1), epoch=2, step=1)
    run.settle()
    (run.paths.directory / "e1").mkdir()
    names = {".DS_Store", "._start.json", ".nfs0000000000000001", ".tmpfile", ".start.json.swp", ".snapshot"}
    for name in names - {".snapshot"}:
        (run.paths.directory / "e1" / name).write_bytes(b"theirs")
    (run.paths.directory / "e1" / ".snapshot").mkdir()
    (run.paths.directory / "e1" / f"{TEMPORARY}7").mkdir()  # ours, of a save that was cut off
    for path in (run.paths.directory / "e1").iterdir():
        os.utime(path, (1e6, 1e6))
    run.clean(2)
    assert set(os.listdir(run.paths.directory / "e1")) == names
