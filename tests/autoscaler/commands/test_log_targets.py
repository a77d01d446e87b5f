"""Whose processes a name means, now and in the past."""

import json
import re
from pathlib import Path

import pytest

from ebbtide_autoscaler.cluster.node_names import Node
from ebbtide_autoscaler.commands.log_reader import LogFile, Selector
from ebbtide_autoscaler.commands.log_targets import Actor, Targets, runs, targets

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


def test_a_driver_of_a_job_whose_name_begins_alike_is_not_this_ones(tmp_path: Path) -> None:
    (driver,) = look("train", tmp_path).by_node[""]
    mine = ("job-driver-train-0a1b2c3d.log", "job-driver-train-0a1b2c3d4e5f-restore1.log")
    others = ("job-driver-train-2-0a1b2c3d.log", "job-driver-train-big-0a1b2c3d.log", "job-driver-retrain-0a1b2c3d.log")
    assert [bool(re.fullmatch(driver.pattern, name)) for name in (*mine, *others)] == [True] * 2 + [False] * 3


def driver(run: str, until_s: float) -> LogFile:
    return LogFile("driver", f"job-driver-{run}.log", 1, until_s)


def rank(ray_job: str, until_s: float, pid: int = 7, end: str = "out") -> LogFile:
    return LogFile("a rank", f"worker-{'ab' * 28}-{ray_job}-{pid}.{end}", 1, until_s)


def test_each_run_of_a_job_has_its_driver_and_all_its_ranks() -> None:
    files = [
        rank("04000000", 10, pid=1),  # its first gang, which crashed
        rank("04000000", 40, pid=2),
        driver("lm-1", 40.5),
        rank("06000000", 71, pid=3),  # later than the copy of it in the driver's log
        driver("lm-2", 70),
        driver("lm-3", 90),  # failed before it had a rank
        rank("0a000000", 130, pid=5),
        driver("lm-4", 100),  # it lives, and its ranks print nothing that is copied
    ]
    assert runs(files) == ["lm-1"] * 3 + ["lm-2"] * 2 + ["lm-3", "lm-4", "lm-4"]
    assert runs(files[::-1]) == runs(files)[::-1]


def test_a_run_that_was_started_by_hand_is_named_after_its_number_and_what_is_no_jobs_has_no_name() -> None:
    agent = LogFile("raylet", "raylet.out", 1, 5)
    assert runs([rank("04000000", 10), rank("04000000", 12, end="err"), agent]) == [
        "by hand, Ray job 04000000",
        "by hand, Ray job 04000000",
        "",
    ]
    assert runs([]) == []


def test_processes_that_ray_kept_ready_are_told_apart_by_their_time() -> None:
    files = [rank("ffffffff", 10, pid=1), driver("lm-1", 11), rank("ffffffff", 60, pid=2), driver("lm-2", 61)]
    assert runs(files) == ["lm-1", "lm-1", "lm-2", "lm-2"]
