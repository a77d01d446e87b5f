"""Everything that leans on Ray Train's internals; no other module imports ``ray.train.v2._internal``.

Ray Train runs the gang: it starts workers, sees them die and restarts them. What it may not decide is on how many
slots and when: its scaling policy is replaced by one that waits for a lease, and nothing of it ever asks Ray for GPUs.
Three stock habits are changed (facts and line numbers in tests/integration/test_ray_contract.py):

- While it waits for a decision the stock controller spins and keeps the old worker group. Ours lets the group go, makes
  sure that no process of it is left, and sleeps between looks.
- Its failure policy counts what a gang raises; here a gang that leaves by order is no failure, failures in a row
  without progress count, not all that ever happened, and only a machine's are tried again (see ``retry_rules``).
- Its Torch backend forms a process group; ours does not (see ``lease_backend``).

The driver's side is ``leased_trainer``; it overrides private methods of Train's trainer, and imports nothing private.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.train import ControllerError, ScalingConfig, WorkerGroupError
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import (
    ENABLE_PREEMPTION_WATCHER_ENV_VAR,
    ENABLE_PRINT_PATCH_ENV_VAR,
    HEALTH_CHECK_INTERVAL_S_ENV_VAR,
    get_env_vars_to_propagate,
)
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.context import DistributedContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.controller.controller import TrainControllerLoopIterationResult
from ray.train.v2._internal.execution.controller.state import (
    ErroredState,
    InitializingState,
    ReschedulingState,
    RestartingState,
    ShuttingDownState,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.messages import Lease
from ebbtide_train.arbiter_client.controller_link import ControllerLink
from ebbtide_train.controller import placement_groups
from ebbtide_train.controller.checkpoint_watch import DurableWatch
from ebbtide_train.controller.failed_rank_output import failed_rank_output
from ebbtide_train.controller.failure_causes import CONTROLLER, ProcessDied, culprits, describe, only_consequences
from ebbtide_train.controller.gang import Gang
from ebbtide_train.controller.retry_rules import RetryRules
from ebbtide_train.session.errors import Cancelled, Preempted
from ebbtide_train.session.step_log import finished_by_last_gang
from ebbtide_train.worker.job_plan import JobPlan, Left, Returned

NODE_LABEL = "ray.io/node-id"  # every node has it
WAITING = (InitializingState, RestartingState, ReschedulingState)
WAIT_S = 0.1  # between looks for a lease, which come in five times a second
DURABLE_S = 2.0  # to read one small file; a shared directory that takes longer hangs
CAUSE_S = 10.0  # for the rank that failed first to say so: it lets go of its slot before it does, which takes seconds
HEALTH_CHECK_S = "0.2"  # the stock 2 s would add up to 2 s to every stop and every restart


# ---- in the worker group ----------------------------------------------------------------------------------------


class LeasedWorkerGroup(WorkerGroup):  # type: ignore[misc] # Ray is not typed for us
    """A worker group whose rank ``i`` runs on the node of slot ``i`` of the gang's lease."""

    gang: Gang
    incarnation: str

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> Any:
        assert self.gang.lease is not None
        nodes = [{NODE_LABEL: slot.node} for slot in self.gang.lease.slots]
        context = worker_group_context
        group = placement_groups.make(self.incarnation, context.resources_per_worker, nodes, context.placement_strategy)
        self.gang.placed(group)
        return DefaultPlacementGroupHandle(group)

    def _create_workers(self, *args: Any, **kwargs: Any) -> list[Any]:
        workers: list[Any] = super()._create_workers(*args, **kwargs)
        workers.sort(key=lambda worker: worker.placement_group_bundle_index)  # Train groups them by node
        self.gang.joined(workers)
        nodes = [worker.metadata.node_id for worker in workers]
        for rank, worker in enumerate(workers):
            worker.distributed_context = DistributedContext(
                world_rank=rank,
                world_size=len(workers),
                local_rank=nodes[:rank].count(nodes[rank]),
                local_world_size=nodes.count(nodes[rank]),
                node_rank=list(dict.fromkeys(nodes)).index(nodes[rank]),
            )
        return workers


# ---- in the controller ------------------------------------------------------------------------------------------


class LeaseScalingPolicy(ScalingPolicy):  # type: ignore[misc] # Ray is not typed for us
    """As many workers as the lease has slots; none without a lease. Never asks Ray for capacity."""

    def __init__(self, scaling_config: ScalingConfig, *, claim: Callable[[], Lease | None], gang: Gang) -> None:
        super().__init__(scaling_config)
        self._claim = claim
        self._gang = gang

    def make_decision_for_non_running_worker_group(self) -> Any:
        """Start when a lease is there."""
        lease = self._claim()
        if lease is None:
            return NoopDecision()
        self._gang.starts(lease)
        return ResizeDecision(len(lease.slots), self.scaling_config._resources_per_worker_not_none)

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:
        """A running gang is resized only by a stop and a new lease."""
        return NoopDecision()

    def after_controller_start(self, train_run_context: Any) -> None:
        """Stock: registers with Ray's AutoscalingCoordinator, which would then count our slots as its own."""

    def _get_num_workers_for_resource_request(self) -> int:
        return 0


class GangFailurePolicy(FailurePolicy):  # type: ignore[misc] # Ray is not typed for us
    """Leaving by order is no failure; what is tried again, `RetryRules` say."""

    def __init__(
        self,
        failure_config: Any,
        *,
        rules: RetryRules,
        plan: JobPlan,
        note: Callable[[str, Collection[int]], None],
        let_go: Callable[[], bool] = lambda: False,
    ) -> None:
        """``note``: is told what failed, and on which ranks; ``let_go``: whether the gang was ended before it began."""
        super().__init__(failure_config)
        self._rules = rules
        self._plan = plan
        self._note = note
        self._let_go = let_go

    def make_decision(self, training_failed_error: Any) -> Any:
        """What Train does next."""
        found = causes(training_failed_error)
        if any(isinstance(cause, Cancelled) for cause in found.values()):
            return FailureDecision.RAISE
        if any(isinstance(cause, Preempted) for cause in found.values()):
            return FailureDecision.RETRY
        if self._let_go():  # guard: a gang that was ended before it began has not failed
            return FailureDecision.RETRY
        why = self._rules.give_up(found, steps_finished(self._plan))
        self._note(f"{describe(found)}{f'; not tried again: {why}' if why else ''}", culprits(found))
        return FailureDecision.RAISE if why else FailureDecision.RETRY


class GangController(TrainController):  # type: ignore[misc] # Ray is not typed for us
    """Train's controller, made to wait for leases."""

    def __init__(self, *, plan: JobPlan, **given: Any) -> None:
        self._gang = Gang()
        self._pool_link = ControllerLink(
            ArbiterLink(), job=plan.section.name, incarnation=plan.incarnation, kill_gang=self._gang.kill
        )
        self._durable = DurableWatch(plan.run_dir, self._pool_link.committed)
        context = given["train_run_context"]
        given["scaling_policy"] = LeaseScalingPolicy(
            context.scaling_config, claim=self._pool_link.claim, gang=self._gang
        )
        given["failure_policy"] = GangFailurePolicy(
            context.run_config.failure_config,
            rules=_rules_of(plan),
            plan=plan,
            note=self._gang_failed,
            let_go=lambda: self._pool_link.let_go,
        )
        self._course: Returned | None = None
        self._held_back_since_s: float | None = None
        super().__init__(**given)
        self.worker_group_cls = type(
            "LeasedWorkerGroup", (LeasedWorkerGroup,), {"gang": self._gang, "incarnation": plan.incarnation}
        )

    async def run(self) -> None:
        """Run the job to its end."""
        self._pool_link.start()
        self._durable.start()
        try:
            await super().run()
        finally:
            self._durable.stop()
            self._pool_link.stop()

    def _gang_failed(self, error: str, ranks: Collection[int]) -> None:
        here = ray.get_runtime_context().get_node_id()
        self._pool_link.gang_failed(error, failed_rank_output(self._gang.members(), ranks, here=here))

    def last_words(self) -> tuple[str, str]:
        """Why the last gang failed, and what its ranks had printed last."""
        said = self._pool_link.report()
        return said.last_error, said.log_tail

    def course(self) -> Returned | None:
        """How far the job came, once its train function has returned on rank 0; without what it returned."""
        return self._course

    async def _step(self) -> Any:
        state = self.get_state()
        if not isinstance(state, WAITING):
            return await super()._step()
        if self._worker_group:
            self._shutdown_worker_group()  # the stock controller keeps it until the next resize
        if not await asyncio.to_thread(self._gang.gone):
            await asyncio.sleep(WAIT_S)
            return self._then(state)
        if self._pool_link.has_gang:
            # The arbiter counts a gang that left as one that lost steps, unless it knows of their commit by then.
            await asyncio.to_thread(self._durable.look, DURABLE_S)
        self._pool_link.no_gang()
        if self._pool_link.cancelled:
            why = Cancelled(self._pool_link.why or "cancelled while it waited")
            return self._then(ShuttingDownState(next_state=ErroredState(training_failed_error=ControllerError(why))))
        result = await super()._step()
        if type(result.next_state) is type(state):
            await asyncio.sleep(WAIT_S)  # the stock controller asks again at once, for ever
        return result

    async def _poll_workers(self) -> Any:
        status = await super()._poll_workers()
        for rank, worker in status.worker_statuses.items():
            if isinstance(worker.return_value, Left):
                kind = Cancelled if worker.return_value.cancelled else Preempted
                worker.error = kind(worker.return_value.text)  # so that it is not taken for the job's end
            elif isinstance(worker.return_value, Returned):
                if rank == 0:
                    self._course = replace(worker.return_value, value=None)
                worker.return_value = worker.return_value.value
        if self._waits_for_the_cause(status):
            for worker in status.worker_statuses.values():
                worker.error = None  # it is there again at the next look
        return status

    def _waits_for_the_cause(self, status: Any) -> bool:
        """Whether ranks complain of a peer that is gone and none has said yet why it failed."""
        running = any(worker.running for worker in status.worker_statuses.values())
        # guard: the cause of a failure is looked for with the rank that failed first
        if not running or not only_consequences(_by_rank(status.errors)):
            self._held_back_since_s = None
            return False
        now_s = time.monotonic()
        self._held_back_since_s = self._held_back_since_s or now_s
        return now_s - self._held_back_since_s < CAUSE_S

    def _then(self, state: Any) -> Any:
        return TrainControllerLoopIterationResult(
            run_attempt_id=self._get_run_attempt_id(), previous_state=self.get_state(), next_state=state
        )


def steps_finished(plan: JobPlan) -> int:
    """How far the last gang came, by its step log; 0 where that cannot be read."""
    try:
        return finished_by_last_gang(plan.run_dir)
    except OSError:
        return 0


def causes(error: Any) -> Mapping[int, BaseException]:
    """What went wrong, by rank; ``CONTROLLER`` is the controller itself."""
    if isinstance(error, WorkerGroupError):
        found = dict(error.worker_failures)
    else:
        found = {CONTROLLER: error.controller_failure if isinstance(error, ControllerError) else error}
    return _by_rank(found)


def _by_rank(found: Mapping[int, BaseException]) -> Mapping[int, BaseException]:
    # Train's own text for a death is a page with the actor's address; the user needs to know which process died.
    return {
        rank: ProcessDied() if isinstance(why, WorkerHealthCheckFailedError) else why for rank, why in found.items()
    }


def _rules_of(plan: JobPlan) -> RetryRules:
    finished = steps_finished(plan)
    return RetryRules(plan.section.max_failures, finished=finished, proven=plan.again and finished > 0)


# ---- for the driver ---------------------------------------------------------------------------------------------


def controller_env() -> dict[str, str]:
    """The environment of a controller, some of which Train hands on to its workers."""
    found: dict[str, str] = {
        HEALTH_CHECK_INTERVAL_S_ENV_VAR: os.environ.get(HEALTH_CHECK_INTERVAL_S_ENV_VAR, HEALTH_CHECK_S),
        "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
        ENABLE_PRINT_PATCH_ENV_VAR: "0",  # Train's print goes to its logger and, in a Ray worker, to stdout as well
        **get_env_vars_to_propagate(),
    }
    found[ENABLE_PREEMPTION_WATCHER_ENV_VAR] = "0"  # the arbiter decides who steps aside
    return found


UNNEEDED = (PlacementGroupCleanerCallback, DatasetsCallback)


def train_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """Train's callbacks but for two that start a process each.

    The cleaner of placement groups is a detached actor per job that asks the dashboard once a second whether the
    controller lives; what it would clean goes with the controller's abort, or the driver removes it. The manager of
    Ray datasets is started with every gang and imports Ray Data; a session feeds its ranks itself.
    """
    return [callback for callback in callbacks if not isinstance(callback, UNNEEDED)]
