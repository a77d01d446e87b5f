"""The file by which Prometheus finds our ports."""

import json
from pathlib import Path

from ebbtide.telemetry.scrape_targets import Target, as_file_sd, write_targets

ARBITER = Target("arbiter", "http://127.0.0.1:9000/metrics", "demo")
GATEWAY = Target("gateway", "https://10.0.0.1:8000", "demo")


def test_targets_are_hosts_and_ports_with_labels() -> None:
    assert json.loads(as_file_sd([GATEWAY, ARBITER])) == [
        {"targets": ["127.0.0.1:9000"], "labels": {"component": "arbiter", "pool": "demo"}},
        {"targets": ["10.0.0.1:8000"], "labels": {"component": "gateway", "pool": "demo", "__scheme__": "https"}},
    ]


def test_the_same_targets_give_the_same_text() -> None:
    assert as_file_sd([GATEWAY, ARBITER, GATEWAY]) == as_file_sd([ARBITER, GATEWAY])


def test_the_file_is_replaced_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "metrics-targets.json"
    write_targets(path, [ARBITER, GATEWAY])
    write_targets(path, [ARBITER])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics-targets.json"]
    assert len(json.loads(path.read_text())) == 1
