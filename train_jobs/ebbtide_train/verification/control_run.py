"""Control runs: fresh processes that replay a job, undisturbed, with the same changes of workers at the same steps.

A change of workers is part of what a job computes (other shares, other reduction); a preemption must not be. So the
control run restarts exactly where the number of workers changed and nowhere else, and its step logs are what the
real job's logs are compared with.

Each rank is a ``python -m ebbtide_train.verification.control_run SPEC RANK`` of its own. No Ray, no arbiter, no slots.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ebbtide.client.messages import DesiredState, Lease, SlotRef
from ebbtide.snapshot.eviction.host_memory import HostMemory
from ebbtide_train.session.coordination.gate import Gate, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import Preempted
from ebbtide_train.session.parking.leftover_regions import LeftoverRegions
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.step_log import StepLine, step_lines
from ebbtide_train.worker.train_function import load_function

TrainFunction = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps at one number of workers; both ends are part of it, steps count from 0."""

    first_step: int
    last_step: int
    world: int


class ControlFailed(Exception):
    """A rank of a control run failed; the message has the end of what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """One gang of a control run."""

    train: str  # "package.module:function"
    args: Mapping[str, object]
    run_dir: str
    world: int
    epoch: int
    stop_after: int | None  # finished steps at which to publish a checkpoint and leave; None: run to the end
    global_batch: int
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)  # further fields of SessionSettings

    def settings(self, rank: int) -> SessionSettings:
        """What rank ``rank`` is told."""
        lease = Lease("control", self.epoch, tuple(SlotRef("control", index) for index in range(self.world)))
        return SessionSettings(
            job="control",
            incarnation="control",
            run_dir=Path(self.run_dir),
            rank=rank,
            world=self.world,
            lease=lease,
            node="control",
            global_batch=self.global_batch,
            seed=self.seed,
            **self.options,  # type: ignore[arg-type]
        )


def run_rank(
    plan: GangPlan,
    rank: int,
    gate: Gate | None = None,
    *,
    memory: HostMemory | None = None,
    left_behind: LeftoverRegions | None = None,
) -> None:
    """Run one rank of a gang in this process, to its end or its stop; see `TrainingSession` for the last two."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # ranks share the cores, and one thread has one order of summation
    settings = plan.settings(rank)
    if gate is None:
        gate = ScriptedGate(
            {} if plan.stop_after is None else {plan.stop_after: DesiredState.STOP}, lease=settings.lease
        )
    train = load_function(plan.train)
    try:
        with activate(TrainingSession(settings, gate, memory=memory, left_behind=left_behind)):
            train(plan.args)
    except Preempted:
        pass  # this segment ends here


def replay(
    train: str,
    args: Mapping[str, object],
    *,
    segments: Sequence[Segment],
    run_dir: Path,
    global_batch: int,
    seed: int = 0,
    options: Mapping[str, object] | None = None,
    launch: Callable[[GangPlan], None] | None = None,
) -> list[StepLine]:
    """Run all segments one after another in fresh processes; the step logs of all.

    The first segment starts from nothing, so ``run_dir`` must be new. ``launch`` runs one gang to its end, by default
    `run_gang`.

    Raises:
        ControlFailed: a rank failed or ran over its time.
    """
    if run_dir.exists() and any(run_dir.iterdir()):
        raise ControlFailed(f"{run_dir} is not empty: a control run starts from nothing")
    run_dir.mkdir(parents=True, exist_ok=True)
    for number, segment in enumerate(segments):
        plan = GangPlan(
            train=train,
            args=args,
            run_dir=str(run_dir),
            world=segment.world,
            epoch=number + 1,
            stop_after=segment.last_step + 1,
            global_batch=global_batch,
            seed=seed,
            options={"checkpoint_every_s": float("inf"), **(options or {})},
        )
        (launch or run_gang)(plan)
    return step_lines(run_dir)


def run_gang(plan: GangPlan, *, timeout_s: float = 600.0) -> None:
    """Run one gang, each rank a process; returns when all have ended well.

    Raises:
        ControlFailed: one has not; the others are killed.
    """
    spec = Path(plan.run_dir) / f"control-{plan.epoch}.json"
    spec.write_text(json.dumps({name: getattr(plan, name) for name in GangPlan.__dataclass_fields__}))
    run_processes(
        [sys.executable, "-m", "ebbtide_train.verification.control_run", str(spec)],
        world=plan.world,
        timeout_s=timeout_s,
    )


def run_processes(command: Sequence[str], *, world: int, timeout_s: float) -> list[str]:
    """Run ``command`` with the rank appended, once per rank, together; what each printed.

    Raises:
        ControlFailed: one failed or ran over its time; the others are killed.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, close_fds=True
        )
        for rank in range(world)
    ]
    printed = []
    try:
        for rank, process in enumerate(ranks):
            output, _ = process.communicate(timeout=timeout_s)
            printed.append(output)
            if process.returncode != 0:
                raise ControlFailed(f"rank {rank} of {world} ended with {process.returncode}:\n{output[-2000:]}")
    except subprocess.TimeoutExpired as error:
        raise ControlFailed(f"a rank of {world} ran over {timeout_s} s") from error
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    return printed


def main(arguments: Sequence[str]) -> None:
    """``SPEC RANK``: run one rank of the gang described in the file SPEC."""
    spec, rank = arguments
    run_rank(GangPlan(**json.loads(Path(spec).read_text())), int(rank))


if __name__ == "__main__":
    main(sys.argv[1:])
