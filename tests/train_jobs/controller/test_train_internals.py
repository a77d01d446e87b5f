"""The parts of the Train shell that need no cluster: places of workers, words for failures, decisions."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import ControllerError, ScalingConfig, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision
from ray.train.v2._internal.execution.worker_group import WorkerGroup

from ebbtide.client.messages import Lease, SlotRef
from ebbtide_train.controller import train_internals
from ebbtide_train.controller.failure_causes import describe
from ebbtide_train.controller.retry_rules import RetryRules
from ebbtide_train.controller.train_internals import (
    GangController,
    GangFailurePolicy,
    LeasedWorkerGroup,
    LeaseScalingPolicy,
    causes,
)
from ebbtide_train.session.errors import Cancelled, Preempted
from ebbtide_train.worker.worker_env import environment
from ebbtide_train.worker.worker_metadata import WorkerMetadata

LEASE = Lease("job", 7, (SlotRef("a", 3, "GPU-5"), SlotRef("b", 0), SlotRef("a", 1)))


def said(interface: str = "eth1") -> list[WorkerMetadata]:
    return [
        WorkerMetadata(pid=9, started=1, printed=(), ip=f"10.0.0.{n}", interface=interface, port=n) for n in range(3)
    ]


def test_every_rank_sees_its_own_slot_and_its_place_on_the_node() -> None:
    found = environment(LEASE, 2, said())
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment(LEASE, 0, said())["CUDA_VISIBLE_DEVICES"] == "GPU-5"  # a uuid cannot be misread, an index can
    logical = Lease("job", 7, (SlotRef("a", 3, "host-3"),))
    assert environment(logical, 0, said())["CUDA_VISIBLE_DEVICES"] == "3"  # CUDA does not know that name
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("2", "3", "1", "2")
    assert found["EBBTIDE_SLOT"] == "a:1"
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.0", "0")


def test_ranks_of_several_nodes_meet_over_the_interface_that_ray_uses() -> None:
    assert environment(LEASE, 1, said())["GLOO_SOCKET_IFNAME"] == "eth1"
    alone = Lease("job", 7, (SlotRef("a", 3), SlotRef("a", 1)))
    assert "GLOO_SOCKET_IFNAME" not in environment(alone, 1, said())
    assert "GLOO_SOCKET_IFNAME" not in environment(LEASE, 1, said(interface=""))


def test_rank_i_is_the_worker_of_slot_i_though_train_groups_workers_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*args: Any, **kwargs: Any) -> list[Any]:
        return [
            SimpleNamespace(placement_group_bundle_index=bundle, metadata=SimpleNamespace(node_id=node))
            for bundle, node in ((0, "a"), (2, "a"), (1, "b"))
        ]

    monkeypatch.setattr(WorkerGroup, "_create_workers", made)
    group = object.__new__(LeasedWorkerGroup)
    joined: list[Any] = []
    group.gang = SimpleNamespace(joined=joined.extend)  # type: ignore[assignment]
    workers = group._create_workers()
    assert [w.placement_group_bundle_index for w in workers] == [0, 1, 2]
    contexts = [w.distributed_context for w in workers]
    assert [(c.world_rank, c.local_rank, c.local_world_size, c.node_rank) for c in contexts] == [
        (0, 0, 2, 0),
        (1, 0, 1, 1),
        (2, 1, 2, 0),
    ]
    assert len(joined) == 3


def test_as_many_workers_as_slots_and_none_without_a_lease() -> None:
    leases = [None, LEASE]
    started: list[Lease] = []
    policy = LeaseScalingPolicy(
        ScalingConfig(num_workers=8, resources_per_worker={"CPU": 2}),
        claim=lambda: leases.pop(0),
        gang=SimpleNamespace(starts=started.append),  # type: ignore[arg-type]
    )
    assert isinstance(policy.make_decision_for_non_running_worker_group(), NoopDecision)
    assert policy.make_decision_for_non_running_worker_group() == ResizeDecision(3, {"CPU": 2})
    assert started == [LEASE]
    assert isinstance(policy.make_decision_for_running_worker_group(None, None), NoopDecision)


def failed(**causes: BaseException) -> Any:
    return WorkerGroupError("trace", {int(rank[1:]): cause for rank, cause in causes.items()})


DIED = WorkerHealthCheckFailedError("a page of text", failure=RuntimeError("x"))


@pytest.mark.parametrize(
    ("error", "decision", "counted"),
    [
        (failed(r0=Preempted("left")), FailureDecision.RETRY, False),
        (failed(r0=ConnectionError("peer"), r1=Preempted("left")), FailureDecision.RETRY, False),
        (failed(r0=Cancelled("left")), FailureDecision.RAISE, False),
        (failed(r0=OSError(5, "boom")), FailureDecision.RETRY, True),
        (ControllerError(RuntimeError("no CPU")), FailureDecision.RETRY, True),
    ],
)
def test_leaving_by_order_is_not_counted(
    error: Any, decision: Any, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_internals, "steps_finished", lambda plan: 0)
    noted: list[tuple[object, ...]] = []
    policy = GangFailurePolicy(None, rules=RetryRules(1), plan=None, note=lambda *said: noted.append(said))  # type: ignore[arg-type]
    assert policy.make_decision(error) is decision
    assert bool(noted) == counted
    if counted:
        assert policy.make_decision(error) is FailureDecision.RAISE


def test_an_authors_mistake_ends_the_job_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_internals, "steps_finished", lambda plan: 0)
    noted: list[str] = []
    policy = GangFailurePolicy(None, rules=RetryRules(9), plan=None, note=lambda said, ranks: noted.append(said))  # type: ignore[arg-type]
    assert policy.make_decision(failed(r0=ConnectionError("peer"), r1=KeyError("x"))) is FailureDecision.RAISE
    assert noted == [
        "rank 1: KeyError: 'x'; rank 0: ConnectionError: peer; not tried again: it failed before its first step"
    ]


@pytest.mark.proves("the cause of a failure is looked for with the rank that failed first")
def test_a_lost_peer_waits_for_the_rank_that_failed_first_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    controller = object.__new__(GangController)
    controller._held_back_since_s = None

    def waits(*running: bool, **errors: BaseException) -> bool:
        found = {int(rank[1:]): error for rank, error in errors.items()}
        statuses = {rank: SimpleNamespace(running=one) for rank, one in enumerate(running)}
        return controller._waits_for_the_cause(SimpleNamespace(worker_statuses=statuses, errors=found))

    assert not waits(True, True)
    assert waits(False, True, r0=ConnectionError("closed by peer"))
    assert not waits(False, False, r0=ConnectionError("closed"), r1=ConnectionError("closed")), "none is left to say"
    assert not waits(False, True, r0=KeyError("x")), "that is the cause"
    assert not waits(False, True, r0=DIED), "and so is that"
    assert waits(False, True, r0=ConnectionError("closed"))
    now_s[0] += train_internals.CAUSE_S + 0.1
    assert not waits(False, True, r0=ConnectionError("closed"))


@pytest.mark.proves("a gang that was ended before it began has not failed")
def test_a_gang_that_was_ended_before_it_began_has_not_failed() -> None:
    noted: list[str] = []
    policy = GangFailurePolicy(
        None,
        rules=RetryRules(0),
        plan=None,  # type: ignore[arg-type]
        note=lambda said, ranks: noted.append(said),
        let_go=lambda: True,
    )
    assert policy.make_decision(failed(r0=DIED)) is FailureDecision.RETRY
    assert not noted


def test_a_death_in_trains_words_is_one_in_ours() -> None:
    found = causes(failed(r0=RuntimeError("gloo: closed"), r1=DIED))
    assert describe(found) == "rank 1: its process died; rank 0: RuntimeError: gloo: closed"
    assert describe(causes(ControllerError(TimeoutError("no CPU")))) == "its controller: TimeoutError: no CPU"
    assert describe(causes(ControllerError(DIED))) == "its controller: its process died"


def test_no_other_module_imports_trains_internals() -> None:
    root = Path(__file__).parents[3]
    rooms = [root / name for name in ("platform", "autoscaler", "serve_apps", "train_jobs")]
    sources = [path for room in rooms for path in room.rglob("*.py")]
    imports = re.compile(r"^\s*(from|import) ray\.train\.v2\._internal", re.MULTILINE)
    assert [path.name for path in sources if imports.search(path.read_text())] == ["train_internals.py"]
