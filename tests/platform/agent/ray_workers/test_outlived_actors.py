"""Which worker processes are ended because their actor is dead, and which never are."""

from typing import Any

import pytest
from ray._private.state import state as cluster
from ray.core.generated import node_manager_pb2

from ebbtide.agent.ray_workers.outlived_actors import OUTLIVED_S, actor_died_s, end_outlived

ACTOR = b"\x01" * 16
DIED_S = 1000.0


def worker(pid: int = 7, *, actor: bytes = ACTOR, resource: str = "GPU_group_0_ab") -> Any:
    found = node_manager_pb2.GetNodeStatsReply().core_workers_stats.add()
    found.pid, found.actor_id = pid, actor
    found.used_resources[resource].resource_slots.add().slot = 0
    return found


def end(
    *workers: Any, now_s: float = DIED_S + OUTLIVED_S, died_s: float | None = DIED_S, started: int | None = 5
) -> list[tuple[int, int]]:
    killed: list[tuple[int, int]] = []

    def kill(pid: int, since: int) -> bool:
        killed.append((pid, since))
        return True

    ended = end_outlived(
        workers,
        died_s=lambda actor: died_s if actor == ACTOR.hex() else None,
        now_s=lambda: now_s,
        started=lambda _pid: started,
        kill=kill,
    )
    assert ended == [pid for pid, _ in killed]
    return killed


@pytest.mark.parametrize("resource", ["GPU", "GPU_group_ab", "GPU_group_0_ab"])
@pytest.mark.proves("a dead actor's process gets the time to end by itself")
def test_the_process_of_a_dead_actor_is_ended_by_pid_and_start_time_once_it_had_time_to_go(resource: str) -> None:
    assert end(worker(resource=resource)) == [(7, 5)]
    assert end(worker(resource=resource), now_s=DIED_S + OUTLIVED_S - 0.1) == []


def test_no_other_is_ended() -> None:
    assert end(worker(), died_s=None) == [], "it lives, or the GCS has forgotten it"
    assert end(worker(actor=b"\xff" * 16)) == [] and end(worker(actor=b"")) == [], "it is no actor's"
    assert end(worker(resource="CPU")) == [], "no GPU is missing for it"
    assert end(worker(), started=None) == [], "it is gone"


@pytest.mark.parametrize(
    ("entry", "at_s"),
    [
        ({"State": "DEAD", "EndTime": 1_000_500}, 1000.5),
        ({"State": "DEAD", "EndTime": 0}, None),
        ({"State": "ALIVE", "EndTime": 0}, None),
        ({"State": "RESTARTING", "EndTime": 1_000_500}, None),
        ({}, None),
    ],
)
@pytest.mark.proves("a worker with a GPU is ended only if its actor is dead for good")
def test_only_a_death_for_good_counts(
    entry: dict[str, Any], at_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "actor_table", lambda actor: entry)
    assert actor_died_s(ACTOR.hex()) == at_s
