"""Running gangs in tests: forked from a server that has imported torch once, so that a gang starts in a blink."""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from ebbtide.client.messages import DesiredState, Lease, RankReport, SlotRef
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.step_log import StepLine, step_lines
from ebbtide_train.verification.control_run import GangPlan, run_rank
from ebbtide_train.verification.plain_training import PlainRun, losses_of_rank

TINY = "tests.train_jobs.tiny:train"
_context = multiprocessing.get_context("forkserver")
# torch imports _dynamo and _inductor on first use of an optimizer and of deterministic mode: 2 s for each process.
_context.set_forkserver_preload(
    ["torch._dynamo", "torch._inductor", "ebbtide_train.verification.plain_training", "tests.train_jobs.tiny"]
)


def plan_of(run_dir: Path, *, world: int, epoch: int = 1, steps: int = 8, **more: object) -> GangPlan:
    """A gang of the tiny job; ``more`` are arguments of the train function, or ``options``/``train``/``seed``."""
    run_dir.mkdir(parents=True, exist_ok=True)
    given: Mapping[str, object] = more.pop("options", {})  # type: ignore[assignment]
    return GangPlan(
        train=str(more.pop("train", TINY)),
        run_dir=str(run_dir),
        world=world,
        epoch=epoch,
        stop_after=None,
        global_batch=int(str(more.pop("global_batch", 6))),
        args={"steps": steps, **more},
        options={"checkpoint_every_s": 1e9, "group_timeout_s": 60.0, **given},
    )


def rank_main(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """One rank with a scripted arbiter; its reports are kept beside the step logs."""
    lease = Lease("job", plan.epoch, tuple(SlotRef("here", index) for index in range(plan.world)))
    gate = NotingGate(wants, lease=lease, path=Path(plan.run_dir) / f"reports-{plan.epoch}-{rank}")
    run_rank(plan, rank, gate)


class NotingGate(ScriptedGate):
    """Writes each report's phase, step and durable step to a file, for the test to wait on."""

    def __init__(self, plan: Mapping[int, DesiredState | Away], *, lease: Lease, path: Path) -> None:
        super().__init__(plan, lease=lease)
        self._path = path

    def report(self, report: RankReport) -> None:
        super().report(report)
        with self._path.open("a") as file:
            file.write(
                f"{report.phase.value} step={report.step} durable={report.durable_step} lost={report.lost_steps} "
                f"epoch={report.lease_epoch} directive={report.directive} "
                f"tracked={report.tracked_bytes} hindered={bool(report.in_place_hindered)} "
                f"refused={report.park_refused}\n"
            )


def start(
    plan: GangPlan, wants: Mapping[int, DesiredState | Away] | None = None, main: Callable[..., None] = rank_main
) -> list[BaseProcess]:
    """Start all ranks; only rank 0 hears ``wants``."""
    processes: list[BaseProcess] = []
    for rank in range(plan.world):
        process = _context.Process(target=main, args=(plan, rank, wants or {} if rank == 0 else {}))
        process.start()
        processes.append(process)
    return processes


def in_process(main: Callable[..., None], *given: object) -> None:
    """Run a function of a test's module in a process of its own, which must end well."""
    process = _context.Process(target=main, args=given)
    process.start()
    join([process])


def run(
    plan: GangPlan, wants: Mapping[int, DesiredState | Away] | None = None, main: Callable[..., None] = rank_main
) -> None:
    """Run a gang to its end; every rank must end well."""
    join(start(plan, wants, main))


def launch(plan: GangPlan) -> None:
    """`replay`'s way to run a gang, by this module's quick start."""
    join(start(plan, {}, control_main))


def control_main(plan: GangPlan, rank: int, wants: object) -> None:
    """One rank as a control run has it."""
    run_rank(plan, rank)


def plain_losses(plan: PlainRun, folder: Path) -> dict[int, tuple[str, ...]]:
    """As `plain_training.run`, by this module's quick start."""
    folder.mkdir(parents=True)
    plan = replace(plan, rendezvous=str(folder / "rendezvous"))
    processes: list[BaseProcess] = []
    for rank in range(plan.world):
        process = _context.Process(target=plain_main, args=(plan, rank, folder))
        process.start()
        processes.append(process)
    join(processes)
    by_rank = [(folder / f"losses-{rank}").read_text().split() for rank in range(plan.world)]
    return {plan.first_step + index: losses for index, losses in enumerate(zip(*by_rank, strict=True))}


def plain_main(plan: PlainRun, rank: int, folder: Path) -> None:
    """One rank of a plain loop."""
    (folder / f"losses-{rank}").write_text(" ".join(losses_of_rank(plan, rank)))


def join(processes: list[BaseProcess], *, timeout_s: float = 60.0) -> None:
    """Wait for all to end well; kill what is left otherwise."""
    deadline = time.monotonic() + timeout_s
    try:
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        kill(processes)


def kill(processes: list[BaseProcess]) -> None:
    """SIGKILL whatever still runs, and reap it."""
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def wait_until(condition: Callable[[], bool], *, what: str, timeout_s: float = 30.0) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def reports(plan: GangPlan, rank: int = 0) -> list[str]:
    """What a rank has reported so far."""
    path = Path(plan.run_dir) / f"reports-{plan.epoch}-{rank}"
    return path.read_text().splitlines() if path.exists() else []


def losses(run_dir: Path) -> dict[tuple[int, int], set[str]]:
    """Hex losses by step and rank; more than one where a repeated step differed."""
    found: dict[tuple[int, int], set[str]] = {}
    for line in step_lines(run_dir):
        found.setdefault((line.step, line.rank), set()).add(line.loss)
    return found


def lines(run_dir: Path) -> list[StepLine]:
    """All step lines by step and rank."""
    return sorted(step_lines(run_dir), key=lambda line: (line.step, line.rank, line.t))


def digests(run_dir: Path, world: int) -> list[str]:
    """The final parameters' hash on each rank."""
    return [(run_dir / f"digest-{rank}").read_text() for rank in range(world)]


def stopping(plan: GangPlan, *, epoch: int, world: int | None = None) -> GangPlan:
    """The next gang of the same job."""
    return replace(plan, epoch=epoch, world=world or plan.world)
