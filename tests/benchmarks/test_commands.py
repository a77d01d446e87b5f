"""What the command costs is measured on commands that do what they should."""

import os
from pathlib import Path

from benchmarks.commands import FILE, GOALS_S, cpu_s, leave_status
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.config.loading.pool_file_loader import load
from ebbtide_autoscaler.journal.status_record import read_record, subject_of


def test_the_file_that_is_checked_is_sound(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(FILE)
    assert [endpoint.name for endpoint in load(tmp_path / "pool.yaml").endpoints] == ["chat"]
    assert set(GOALS_S) == {"--help", "validate FILE", "status"}


def test_a_process_has_cost_something(tmp_path: Path) -> None:
    assert 0 < cpu_s("--version", tmp_path, os.environ) < 10


def test_the_status_that_is_left_is_one_of_all_slots(tmp_path: Path) -> None:
    record = ClusterRecord("demo", "127.0.0.1:1", "", "", str(tmp_path), "")
    assert leave_status(tmp_path, record, 64) > 0
    found = read_record(tmp_path, subject_of("demo", str(tmp_path), record.address))
    assert found is not None and len(found.status["slots"]) == 64 and found.status["jobs"]
