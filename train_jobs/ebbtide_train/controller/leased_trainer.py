"""The driver's side of a leased gang: a Ray Train trainer that starts our controller, waits for it, and ends it.

A controller dies with its driver, and the gang with its controller (Ray's ownership).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from ebbtide_train.controller import placement_groups
from ebbtide_train.controller.lease_backend import LeaseBackendConfig
from ebbtide_train.controller.train_internals import NODE_LABEL, GangController, controller_env, train_callbacks
from ebbtide_train.worker.entry import enter
from ebbtide_train.worker.job_plan import JobPlan, Returned

NO_CPU = 0.001  # a bundle must ask for something: Ray refuses empty ones
ABORT_S = 1.0  # measured: 0.1 s; see stop_wait for what there is in all


class LeasedTrainer(DataParallelTrainer):  # type: ignore[misc] # Ray is not typed for us
    """A Ray Train trainer whose gang runs under leases of the pool.

    Of Train's trainers it extends the one below TorchTrainer, which adds nothing but the Torch backend.
    """

    def __init__(self, plan: JobPlan, args: Mapping[str, Any]) -> None:
        section = plan.section
        super().__init__(
            enter,
            train_loop_config={"plan": plan, "args": args},
            backend_config=LeaseBackendConfig(),
            scaling_config=ScalingConfig(
                num_workers=section.workers.max,
                use_gpu=False,  # the fence carries the logical GPU, so that a parked worker costs Ray nothing
                resources_per_worker={"CPU": section.cpus_per_worker or NO_CPU},
            ),
            run_config=RunConfig(name="ray", storage_path=str(plan.run_dir)),
        )
        self._plan = plan
        self._why, self._last_words = "", ""
        self._course: Returned | None = None

    def _before_run(self) -> None:
        """The controller is up and is about to speak for the job."""

    def _ask_to_leave(self) -> float:
        """This process was told to stop; how many seconds it can wait for the gang to leave in order."""
        return 0.0

    def _has_left(self) -> None:
        """It has."""

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        here = ray.get_runtime_context().get_node_id()
        actor = ray.remote(num_cpus=0, label_selector={NODE_LABEL: here}, runtime_env={"env_vars": controller_env()})
        controller = actor(GangController).remote(plan=self._plan, **given)
        running = None
        try:
            ray.get(controller.__ray_ready__.remote())
            self._before_run()
            running = controller.run.remote()
            ray.get(running)
            self._why, self._last_words = ray.get(controller.last_words.remote())
            self._course = ray.get(controller.course.remote())
            return ray.get(controller.get_result.remote())
        except (KeyboardInterrupt, SystemExit):
            self._leave(controller, running)
            raise
        finally:
            ray.kill(controller)  # its gang must not outlive this call
            with suppress(RayError):
                placement_groups.remove_left(self._plan.incarnation)

    def _leave(self, controller: Any, running: Any) -> None:
        patience_s = self._ask_to_leave() if running is not None else 0.0
        with suppress(RayError):  # an aborted gang's placement group goes even if this process lives on
            if running is not None and ray.wait([running], timeout=patience_s)[0]:
                ray.get(running)
                self._has_left()
            else:
                ray.get(controller.abort.remote(), timeout=ABORT_S)

    def _create_default_callbacks(self) -> list[Any]:
        return train_callbacks(super()._create_default_callbacks())
