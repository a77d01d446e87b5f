"""Ranks of a gang that a real helper with a fake driver freezes: a helper beside the run directory, at helper.sock."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from ebbtide.client.messages import DesiredState, Lease, SlotRef
from ebbtide.helper.client import Helper
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.system.process import started_ticks
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.current import activate
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.verification.control_run import GangPlan
from ebbtide_train.worker.cuda_context import CudaContext
from tests.train_jobs import gangs, tiny


def frozen_rank(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """A rank of a gang, in a process of its own. Each time that it is frozen it adds a line to RUN_DIR/there: whether
    it still had its group, and who had let go of that."""
    run_dir = Path(plan.run_dir)
    driver, started = FakeDriver(run_dir.parent / "driver"), started_ticks(os.getpid())
    assert started is not None
    lease = Lease("job", plan.epoch, tuple(SlotRef("here", index) for index in range(plan.world)))
    gate = gangs.NotingGate(wants, lease=lease, path=run_dir / f"reports-{plan.epoch}-{rank}")
    context = CudaContext(
        Helper(run_dir.parent / "helper.sock"),
        f"job/{rank}",
        pid=os.getpid(),
        started=started,
        warm_up=lambda: None,
        let_go=lambda: None,
    )
    plain = context.freeze

    def freeze() -> None:
        names = sorted(path.name for path in (run_dir / "rendezvous" / "control").glob("off-*"))
        with (run_dir / "there").open("a") as file:
            file.write(f"{dist.is_initialized()} {' '.join(names)}\n")
        plain()
        assert driver.state(os.getpid()) is ProcessState.CHECKPOINTED

    context.freeze = freeze  # type: ignore[method-assign]
    torch.set_num_threads(1)  # as `run_rank` does: one thread has one order of summation
    with activate(TrainingSession(plan.settings(rank), gate, context=context)):
        tiny.train(plan.args)
