"""Every signature and behaviour of Ray's internals that we lean on, so that an upgrade of Ray names what broke.

One section per room. Nothing here starts a cluster: what only shows in a running one is tested where it is used.
"""

import inspect
import zipfile
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# ---- train: ebbtide_train.controller.train_internals, leased_trainer, lease_backend
# ---------------------------------------


def parameters(function: Any) -> list[str]:
    """Names of a function's parameters, self left out."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_fit_hands_everything_to_one_method_as_the_controllers_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2.api import data_parallel_trainer
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    monkeypatch.setattr(data_parallel_trainer, "ObjectRefWrapper", lambda function: function)  # else Ray starts
    given: dict[str, Any] = {}

    class Trainer(DataParallelTrainer):  # type: ignore[misc] # Ray is not typed for us
        def _initialize_and_run_controller(self, **kwargs: Any) -> Any:
            given.update(kwargs)
            return SimpleNamespace(error=None)

    trainer = Trainer(lambda: None)
    trainer.fit()
    assert not ray.is_initialized()
    assert set(given) == {
        "train_fn_ref",
        "scaling_policy",
        "failure_policy",
        "train_run_context",
        "callbacks",
        "validation_config",
    }
    assert set(given) == set(parameters(TrainController.__init__))
    assert {"run_config", "scaling_config", "backend_config"} <= set(vars(given["train_run_context"]))


def test_the_controller_has_the_methods_that_ours_overrides_and_calls() -> None:
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.controller.controller import TrainControllerLoopIterationResult

    for name in ("_step", "_poll_workers", "run", "abort"):
        assert inspect.iscoroutinefunction(getattr(TrainController, name)), name
        assert parameters(getattr(TrainController, name)) == [], name
    for name in ("get_state", "_shutdown_worker_group", "_get_run_attempt_id", "get_result"):
        assert parameters(getattr(TrainController, name)) == [], name
    assert "_worker_group" in inspect.getsource(TrainController._shutdown_worker_group)
    assert [f.name for f in fields(TrainControllerLoopIterationResult)] == [
        "run_attempt_id",
        "previous_state",
        "next_state",
        "training_failed_error",
    ]


def test_the_controller_makes_its_worker_group_by_its_class_attribute() -> None:
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    assert TrainController.worker_group_cls is WorkerGroup
    assert "self.worker_group_cls.create(" in inspect.getsource(TrainController._start_worker_group)
    assert parameters(WorkerGroup.create) == ["train_run_context", "worker_group_context", "callbacks"]


def test_the_stock_controller_asks_again_at_once_and_keeps_its_group_while_it_waits() -> None:
    """The two habits that GangController changes; when this fails, it may have become simpler."""
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.controller.state import InitializingState
    from ray.train.v2._internal.execution.scaling_policy import NoopDecision

    group = object()
    controller = object.__new__(TrainController)
    controller._worker_group = group
    controller._run_attempt_id = "attempt"
    controller._scaling_policy = SimpleNamespace(make_decision_for_non_running_worker_group=NoopDecision)
    state = InitializingState()
    result = controller._make_and_handle_scaling_decision_for_non_running_worker_group(state)
    assert result.next_state is state
    assert controller._worker_group is group
    assert "sleep" not in inspect.getsource(TrainController._step)


def test_states_and_decisions_are_made_as_we_make_them() -> None:
    from ray.train import ControllerError
    from ray.train.v2._internal.execution.controller.state import (
        ErroredState,
        InitializingState,
        ReschedulingState,
        RestartingState,
        ShuttingDownState,
    )
    from ray.train.v2._internal.execution.failure_handling import FailureDecision
    from ray.train.v2._internal.execution.scaling_policy import ResizeDecision

    error = ControllerError(RuntimeError("x"))
    ending = ShuttingDownState(next_state=ErroredState(training_failed_error=error))
    assert ending.next_state.training_failed_error.controller_failure.args == ("x",)
    assert not InitializingState().is_terminal()
    for state in (RestartingState, ReschedulingState):
        assert parameters(state.__init__) == ["training_failed_error"]
    assert {decision.name for decision in FailureDecision} == {"RETRY", "RAISE", "NOOP"}
    assert [f.name for f in fields(ResizeDecision)] == ["num_workers", "resources_per_worker"]


def test_a_scaling_policy_needs_three_methods_and_stays_away_from_ray_without_its_start() -> None:
    import asyncio

    from ray.train import ScalingConfig
    from ray.train.v2._internal.execution.scaling_policy import ScalingPolicy

    assert ScalingPolicy.__abstractmethods__ == {
        "make_decision_for_non_running_worker_group",
        "make_decision_for_running_worker_group",
        "_get_num_workers_for_resource_request",
    }
    assert parameters(ScalingPolicy.after_controller_start) == ["train_run_context"]

    class Policy(ScalingPolicy):  # type: ignore[misc] # Ray is not typed for us
        def make_decision_for_non_running_worker_group(self) -> None: ...
        def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> None: ...
        def _get_num_workers_for_resource_request(self) -> int:
            return 0

    policy = Policy(ScalingConfig(num_workers=1))
    asyncio.run(policy.before_controller_shutdown())
    policy.before_controller_abort()  # neither connects to anything
    assert policy.scaling_config._resources_per_worker_not_none == {"CPU": 1}


def test_a_failure_policy_needs_one_method() -> None:
    from ray.train.v2._internal.execution.failure_handling import FailurePolicy

    assert FailurePolicy.__abstractmethods__ == {"make_decision"}
    assert parameters(FailurePolicy.make_decision) == ["training_failed_error"]
    assert parameters(FailurePolicy.__init__) == ["failure_config"]


def test_worker_errors_are_the_users_own_and_can_be_set_on_a_status() -> None:
    from ray.train import WorkerGroupError
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerHealthCheckFailedError
    from ray.train.v2._internal.execution.worker_group import WorkerGroupPollStatus, WorkerStatus

    left = WorkerStatus(running=False, return_value="left")
    raised = WorkerStatus(running=False, error=UserExceptionWithTraceback(KeyError("k"), "trace"))
    status = WorkerGroupPollStatus({0: left, 1: raised})
    left.error = StopIteration("set later")
    assert {rank: type(error) for rank, error in status.errors.items()} == {0: StopIteration, 1: KeyError}
    error = status.get_worker_group_error()
    assert isinstance(error, WorkerGroupError)
    assert error.worker_failures == status.errors
    assert not issubclass(WorkerHealthCheckFailedError, WorkerGroupError)


def test_a_worker_group_can_be_placed_worker_by_worker() -> None:
    import ray
    from ray.train.v2._internal.execution.context import DistributedContext
    from ray.train.v2._internal.execution.worker_group import ActorMetadata, Worker, WorkerGroup
    from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
    from ray.train.v2._internal.execution.worker_group.state import WorkerGroupContext
    from ray.util.placement_group import placement_group

    from ebbtide_train.controller.train_internals import NODE_LABEL

    assert NODE_LABEL == ray._raylet.RAY_NODE_ID_KEY
    assert parameters(WorkerGroup._create_placement_group) == ["scaling_config", "worker_group_context"]
    assert {"resources_per_worker", "placement_strategy"} <= {f.name for f in fields(WorkerGroupContext)}
    assert parameters(DefaultPlacementGroupHandle.__init__) == parameters(DefaultPlacementGroupHandle) == ["pg"]
    assert {"name", "strategy", "bundle_label_selector"} <= set(parameters(placement_group))
    assert {"actor", "metadata", "distributed_context", "placement_group_bundle_index"} <= {
        f.name for f in fields(Worker)
    }
    assert {"node_id", "pid"} <= {f.name for f in fields(ActorMetadata)}
    assert [f.name for f in fields(DistributedContext)] == [
        "world_rank",
        "world_size",
        "local_rank",
        "local_world_size",
        "node_rank",
    ]


def test_ranks_are_given_within_create_workers_before_anything_reads_them() -> None:
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    assert "_assign_worker_ranks" in inspect.getsource(WorkerGroup._create_workers)
    start = inspect.getsource(WorkerGroup._start_impl)
    order = [start.index(step) for step in ("_create_placement_group", "_create_workers", "_init_train_context")]
    assert order == sorted(order)
    assert start.index("after_worker_group_start(self)") < start.index("run_train_fn.remote")


def test_the_backend_starts_when_the_group_does() -> None:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2._internal.callbacks import BackendSetupCallback

    from ebbtide_train.controller.lease_backend import LeaseBackend, LeaseBackendConfig

    assert parameters(Backend.on_start) == ["worker_group", "backend_config"]
    callback = BackendSetupCallback(LeaseBackendConfig())
    assert isinstance(callback._backend, LeaseBackend)
    assert not LeaseBackend.share_cuda_visible_devices
    with BackendConfig().train_func_context():
        pass  # no torch: TorchConfig's would ask CUDA before the train function runs


def test_a_gang_can_do_without_the_manager_of_datasets() -> None:
    from ray.train import DataConfig
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker

    from ebbtide_train.controller.train_internals import train_callbacks

    assert inspect.signature(RayTrainWorker.init_train_context).parameters["dataset_shard_provider"].default is None
    stock = DatasetsCallback(SimpleNamespace(dataset_config=DataConfig()), datasets={})
    assert train_callbacks([stock, "another"]) == ["another"]


def test_settings_reach_the_controller_and_the_workers_by_these_variables() -> None:
    from ray.train.v2._internal.constants import (
        ENABLE_PREEMPTION_WATCHER_ENV_VAR,
        ENABLE_PRINT_PATCH_ENV_VAR,
        ENV_VARS_TO_PROPAGATE,
        HEALTH_CHECK_INTERVAL_S_ENV_VAR,
    )

    ours = {ENABLE_PREEMPTION_WATCHER_ENV_VAR, ENABLE_PRINT_PATCH_ENV_VAR, HEALTH_CHECK_INTERVAL_S_ENV_VAR}
    assert ours <= ENV_VARS_TO_PROPAGATE
    assert HEALTH_CHECK_INTERVAL_S_ENV_VAR == "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"


def test_the_job_service_takes_what_submit_gives() -> None:
    from ray.dashboard.modules.job.job_supervisor import JobSupervisor
    from ray.job_submission import JobStatus, JobSubmissionClient

    from ebbtide_train.submission.training_job import OVER

    wanted = {"entrypoint", "submission_id", "runtime_env", "metadata"}
    assert wanted <= set(parameters(JobSubmissionClient.submit_job))
    assert {status.value for status in JobStatus if status.is_terminal()} == OVER
    assert inspect.isasyncgenfunction(inspect.unwrap(JobSubmissionClient.tail_job_logs))
    # Why submit gives the address by a variable of its own.
    assert "RAY_ADDRESS_ENVIRONMENT_VARIABLE: ray_addr" in inspect.getsource(JobSupervisor._get_driver_env_vars)


def test_an_upload_follows_links_and_leaves_out_what_is_excluded(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package

    for name in ("code/deep/mine.py", "code/shared/big", "shared/big"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text("x")
    (tmp_path / "links").mkdir()
    for name in ("code", "shared"):
        (tmp_path / "links" / name).symlink_to(tmp_path / "work" / name)
    create_package(str(tmp_path / "links"), tmp_path / "p.zip", include_gitignore=True, excludes=["/shared"])
    with zipfile.ZipFile(tmp_path / "p.zip") as package:
        assert set(package.namelist()) == {"code/deep/mine.py", "code/shared/big"}


@pytest.mark.parametrize("name", ["TrainingFailedError", "ControllerError", "WorkerGroupError", "Result"])
def test_public_names_are_there(name: str) -> None:
    import ray.train

    assert hasattr(ray.train, name)


# ---- nodes: agents, fences, replicas bound to a node ------------------------------------------------------------


def test_a_replicas_actor_may_be_bound_by_a_label_and_gateways_to_one_per_node() -> None:
    from ray.serve._private.config import ReplicaConfig

    node = {"label_selector": {"ray.io/node-id": "n"}}
    config = ReplicaConfig.create(object, ray_actor_options={"num_gpus": 2, **node}, max_replicas_per_node=1)
    assert config.ray_actor_options["label_selector"] == node["label_selector"]
    assert config.max_replicas_per_node == 1


def test_a_raylet_says_which_worker_has_which_logical_gpu() -> None:
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    from ebbtide.agent.ray_workers import forgotten_leases
    from ebbtide.agent.ray_workers.logical_gpus import gpu_users

    assert callable(init_grpc_channel) and hasattr(node_manager_pb2_grpc, "NodeManagerServiceStub")
    assert "include_memory_info" in node_manager_pb2.GetNodeStatsRequest.DESCRIPTOR.fields_by_name
    reply = node_manager_pb2.GetNodeStatsReply()
    worker = reply.core_workers_stats.add()
    worker.pid, worker.job_id = 2**22 + 1, b"\x01\x00\x00\x00"
    worker.used_resources["GPU"].resource_slots.add().slot = 1
    assert gpu_users(reply.core_workers_stats) == {1: "a Ray worker (pid 4194305, Ray job 01000000)"}
    assert common_pb2.WorkerType.Value("WORKER") == forgotten_leases.WORKER
    assert not forgotten_leases.never_used(worker)


def test_a_fence_can_be_bound_by_a_label_and_the_table_says_where_it_stands() -> None:
    from ray._private.state import GlobalState
    from ray.util.placement_group import placement_group

    assert {"name", "lifetime", "bundle_label_selector"} <= set(parameters(placement_group))
    assert '"bundles_to_node_id"' in inspect.getsource(GlobalState._gen_placement_group_info)


def test_an_agent_knows_its_nodes_labels_and_lets_no_calls_pile_up() -> None:
    from ray._common.ray_option_utils import actor_options
    from ray.exceptions import PendingCallsLimitExceeded, RayError
    from ray.runtime_context import RuntimeContext

    assert parameters(RuntimeContext.get_node_labels) == []
    assert "max_pending_calls" in actor_options
    assert issubclass(PendingCallsLimitExceeded, RayError)


def test_the_table_of_actors_says_where_each_one_runs_and_as_which_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.state import GlobalState
    from ray.core.generated.gcs_pb2 import ActorTableData

    from ebbtide_autoscaler.commands.log_targets import Actor, actors

    alive = ActorTableData(actor_id=b"\1" * 16, name="arbiter", class_name="Arbiter", pid=7, state=ActorTableData.ALIVE)
    alive.address.node_id = b"\xab" * 28
    dead = ActorTableData(actor_id=b"\2" * 16, class_name="ServeReplica", state=ActorTableData.DEAD)
    gcs = SimpleNamespace(get_actor_table=lambda job, state: [one.SerializeToString() for one in (alive, dead)])
    monkeypatch.setattr(GlobalState, "_connect_and_get_accessor", lambda self: gcs)
    assert actors() == [Actor("arbiter", "Arbiter", "ab" * 28, 7, True), Actor("", "ServeReplica", "", 0, False)]
