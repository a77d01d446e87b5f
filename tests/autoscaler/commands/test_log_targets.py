"""Whose processes a name means, now and in the past."""

import json
from pathlib import Path

import pytest

from ebbtide_autoscaler.cluster.node_names import Node
from ebbtide_autoscaler.commands.log_reader import Selector
from ebbtide_autoscaler.commands.log_targets import Actor, Targets, targets

N = "0123456789abcdef"
NODES = [Node(N, "box")]
STATUS = {
    "jobs": [{"job": "train", "pids": {"0": 10}, "slots": [f"{N}:0"]}],
    "endpoints": [{"endpoint": "chat", "seats": [{"seat": "chat/0"}]}],
}
ACTORS = [
    Actor("arbiter", "Arbiter", N, 1, True),
    Actor("arbiter", "SomebodyElse", N, 2, True),
    Actor("SERVE_REPLICA::seat-chat-0#replica#x", "ServeReplica", N, 3, True),
    Actor("SERVE_REPLICA::seat-chat-01#replica#x", "ServeReplica", N, 4, True),
    Actor("SERVE_REPLICA::ebbtide-gateway#gateway#x", "ServeReplica", N, 5, True),
    Actor("agent-01234567", "NodeAgent", N, 6, True),
]


def look(name: str, shared: Path, status: object = STATUS) -> Targets:
    return targets(name, status=status, known=ACTORS, nodes=NODES, shared_dir=shared)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "pids"), [("arbiter", {1}), ("chat", {3}), ("chat/0", {3}), ("gateway", {5})])
def test_a_name_means_its_own_processes(tmp_path: Path, name: str, pids: set[int]) -> None:
    assert {one.pid for one in look(name, tmp_path).by_node[N]} == pids


@pytest.mark.parametrize("name", ["box", "01234567", N])
def test_a_node_means_its_agent_and_its_raylet(tmp_path: Path, name: str) -> None:
    assert [one.label for one in look(name, tmp_path).by_node[N]] == ["agent", "raylet"]


def test_a_job_means_its_driver_its_ranks_and_those_of_the_past(tmp_path: Path) -> None:
    (tmp_path / "occupancy").mkdir()
    for pid, workload in ((10, "train"), (9, "train"), (8, "other")):
        line = json.dumps({"slot": f"{N}:0", "workload": workload, "pid": pid})
        (tmp_path / "occupancy" / f"{N[:8]}-{pid}-1.jsonl").write_text(f"{line}\n")
    (tmp_path / "occupancy" / "torn.jsonl").write_text("{")
    found = look("train", tmp_path)
    assert found.by_node[N] == [Selector("rank 0", pid=10), Selector("a rank (pid 9)", pid=9)]
    assert [one.label for one in found.by_node[""]] == ["driver"]


def test_an_unknown_name_is_refused_and_while_nobody_answers_it_is_tried(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no job, endpoint, seat or node is named 'nobody'"):
        look("nobody", tmp_path)
    found = look("nobody", tmp_path, {})
    assert found.missing == ["the arbiter does not answer, so names are taken as they are"]
