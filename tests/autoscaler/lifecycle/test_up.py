"""What a file promises is held against the cluster that is there, before anything is put into force."""

from pathlib import Path
from typing import Any

import pytest
import ray

from ebbtide.config.loading.pool_file_loader import load
from ebbtide.config.pool_file import PoolFile
from ebbtide_autoscaler.lifecycle.up import UpRefused, _fits, _port_is_free, _readiness

FILE = """pool: {{name: demo, slots: all, shared_dir: shared, ray_address: auto{more}}}
endpoints:
  - {{name: chat, model: m:1, replicas: {{min: 1, max: 2}}, gpus_per_replica: 2}}
jobs:
  - {{name: lm, entrypoint: "a:b", workers: {{min: 6, max: 6}}, global_batch: 6, micro_batch: 1}}
"""


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[int], more: str = "") -> list[str]:
    nodes: list[dict[str, Any]] = [{"Alive": True, "Resources": {"GPU": float(count)}} for count in gpus]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    found: list[str] = []
    _fits(_file(tmp_path, more), found.append)
    return found


def _file(tmp_path: Path, more: str) -> PoolFile:
    path = tmp_path / "pool.yaml"
    path.write_text(FILE.format(more=more))
    return load(path)


def test_a_gang_that_the_cluster_cannot_hold_is_told_of_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(tmp_path, monkeypatch, [4, 4]) == []
    (one,) = told(tmp_path, monkeypatch, [4, 3])
    assert one.startswith(
        "warning: with the 7 GPUs of the cluster as it is: jobs[0].workers.min: min is 6, and jobs can"
    )


def test_nodes_that_may_yet_be_started_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(tmp_path, monkeypatch, [4], ", nodes_max: 2, node_gpus: 4") == []
    assert len(told(tmp_path, monkeypatch, [4])) == 1


def test_a_replica_that_fits_on_no_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UpRefused, match="the largest node of the cluster has 1"):
        told(tmp_path, monkeypatch, [1] * 8)


def test_a_gateway_that_leaves_makes_no_pool_ready(tmp_path: Path) -> None:
    """It is heard while it ends its streams, but whoever connects to it is refused."""
    status: dict[str, Any] = {"slots": [{"node": "n0", "state": "free"}], "gateways": []}
    config = _file(tmp_path, "")
    assert _readiness(config, status) == ("slots: free; gateway: starting", False)
    status["gateways"] = [{"heard_ago_s": 0.1, "leaving": True}]
    assert _readiness(config, status) == ("slots: free; gateway: starting", False)
    status["gateways"].append({"heard_ago_s": 0.1, "leaving": False})
    assert _readiness(config, status) == ("slots: free; gateway: up", True)


def test_an_address_that_is_not_this_machine_s_is_held_by_no_process() -> None:
    with pytest.raises(UpRefused, match=r"Cannot assign requested address; choose another gateway\.port"):
        _port_is_free("203.0.113.1", 8000, patience_s=0)
