"""The same training as a plain PyTorch loop, without our session: what an author would write without ebbtide.

It shares with the session only what defines the job: which samples a step takes, the seeds, and the reader of
portable checkpoints. It uses DDP as it comes. So it gives the session's losses bit for bit where addition over ranks
has only one order: with one and two workers.

Each rank is a ``python -m ebbtide_train.verification.plain_training SPEC RANK`` of its own.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.loop.samples import sample_ids, share
from ebbtide_train.session.state import rng
from ebbtide_train.session.state.train_state import TrainState
from ebbtide_train.verification.control_run import run_processes
from ebbtide_train.worker.train_function import load_function


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """Steps ``first_step`` to ``last_step`` of a job; from nothing, or from the commit in ``start_dir``."""

    build: str  # "package.module:function"; build(args) -> model, optimizer, scheduler, dataset, loss function
    args: Mapping[str, object]
    first_step: int
    last_step: int
    world: int
    global_batch: int
    seed: int = 0
    start_dir: str = ""  # a run directory whose commit is of exactly ``first_step`` finished steps
    rendezvous: str = ""


def run(plan: PlainRun, *, work_dir: Path, timeout_s: float = 600.0) -> dict[int, tuple[str, ...]]:
    """Losses as hex, by step, in rank order, computed in fresh processes.

    Raises:
        ControlFailed: a rank failed or ran over its time.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    spec = work_dir / "plain.json"
    meeting = work_dir.absolute() / f"plain-{plan.first_step}-{plan.world}"
    meeting.unlink(missing_ok=True)
    spec.write_text(json.dumps({**asdict(plan), "rendezvous": str(meeting)}))
    command = [sys.executable, "-m", "ebbtide_train.verification.plain_training", str(spec)]
    printed = run_processes(command, world=plan.world, timeout_s=timeout_s)
    by_rank = [json.loads(output.strip().splitlines()[-1]) for output in printed]
    return {plan.first_step + index: losses for index, losses in enumerate(zip(*by_rank, strict=True))}


def losses_of_rank(plan: PlainRun, rank: int) -> list[str]:
    """The plain loop itself."""
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    if plan.world > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{plan.rendezvous}", rank=rank, world_size=plan.world)
    rng.seed_job(plan.seed)
    parts: Any = load_function(plan.build)(plan.args)
    model, optimizer, scheduler, dataset, loss_fn = parts
    model = model.to(device)
    rng.seed_rank(plan.seed, step=plan.first_step, rank=rank)
    if plan.start_dir:
        _start_from(plan, rank, TrainState(model, optimizer, scheduler, {}), device)
    trained: Any = DistributedDataParallel(model) if plan.world > 1 else model

    losses = []
    for step in range(plan.first_step, plan.last_step + 1):
        ids = sample_ids(step, seed=plan.seed, length=len(dataset), global_batch=plan.global_batch)
        mine = share(ids, rank=rank, world=plan.world)
        x, y = (tensor.to(device) for tensor in default_collate([dataset[index] for index in mine]))
        loss = loss_fn(trained(x), y)
        weight = len(mine) * plan.world / plan.global_batch
        (loss * weight).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item().hex())
    if plan.world > 1:
        del trained
        dist.destroy_process_group()
    return losses


def _start_from(plan: PlainRun, rank: int, tracked: TrainState, device: torch.device) -> None:
    store = CheckpointStore(Path(plan.start_dir))
    newest = store.newest()
    ref = None if newest is None else store.ref(newest)
    assert ref is not None and ref.step == plan.first_step, f"{plan.start_dir} has no commit of step {plan.first_step}"
    state: Any = store.load(ref)
    tracked.load(state)
    if ref.world == plan.world:
        rng.restore(state["rng"][str(rank)], device)


def main(arguments: Sequence[str]) -> None:
    """``SPEC RANK``: run one rank and print its losses as a line of JSON."""
    spec, rank = arguments
    print(json.dumps(losses_of_rank(PlainRun(**json.loads(Path(spec).read_text())), int(rank))))


if __name__ == "__main__":
    main(sys.argv[1:])
