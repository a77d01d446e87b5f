"""One rank of one side of the steady cost: ``SPEC RANK`` runs it, by turns; ``calibrate SECONDS`` tells what fits."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.preempt.steady import SESSION, WARM_UP_STEPS, WORLD, Load, Turns
from ebbtide.client.messages import Lease, SlotRef
from ebbtide_train.session.coordination.gate import ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.settings import SessionSettings

WIDTH = 512  # a product of two such matrices takes 5 to 10 ms on one core
FEATURES = 64


class Numbers:
    """Samples of the plain kind."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((FEATURES,), index / 1000)


class Work:
    """What a step does besides its own small model."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._left, self._right = torch.rand(WIDTH, WIDTH), torch.rand(WIDTH, WIDTH)

    def do(self) -> None:
        """The products, and the wait."""
        for _ in range(self._load.products):
            torch.mm(self._left, self._right)
        time.sleep(self._load.wait_s)


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model whose own step is a small part of the work."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, FEATURES))
    return model, torch.optim.AdamW(model.parameters())


def session_loop(load: Load, folder: Path, rank: int, turns: Turns) -> None:
    """As an author writes it for a session that may be parked at any step."""
    lease = Lease("steady", 1, tuple(SlotRef("here", index) for index in range(WORLD)))
    settings = SessionSettings(
        job="steady",
        incarnation="steady",
        run_dir=folder / "train" / "steady",
        rank=rank,
        world=WORLD,
        lease=lease,
        node="here",
        global_batch=8 * WORLD,
        checkpoint_every_s=1e9,  # durability is another matter, and has its own measure
        device="cpu",
        deterministic=False,
    )
    work = Work(load)
    with activate(TrainingSession(settings, ScriptedGate({}, lease=lease))) as session:
        model, optimizer = parts()
        prepared = session.prepare(model, optimizer)
        for step in session.steps(total=turns.total):
            turns.step_begins()
            for batch in step.batches(Numbers()):
                step.backward((prepared(batch.x) - batch.x).square().mean())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            work.do()


def plain_loop(load: Load, folder: Path, rank: int, turns: Turns) -> None:
    """As an author writes it without us: the same samples, collated the same way, and a loss that is looked at."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=WORLD)
    model, optimizer = parts()
    wrapped = DistributedDataParallel(model)
    order = torch.Generator().manual_seed(0)
    work, numbers = Work(load), Numbers()
    for _ in range(turns.total):
        turns.step_begins()
        ids = torch.randint(len(numbers), (8 * WORLD,), generator=order)[rank::WORLD]
        x = torch.stack([numbers[int(index)] for index in ids])
        loss = (wrapped(x) - x).square().mean()
        loss.backward()
        loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        work.do()
    del wrapped
    dist.destroy_process_group()


def calibrate(seconds: float) -> int:
    """How many products take so long."""
    work, count = Work(Load(0, 1, 0.0)), 0
    for _ in range(20):
        work.do()
    began_s = time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < 1.0:
        work.do()
        count += 1
    return round(count * seconds / took_s)


def main() -> None:
    """See the module."""
    torch.set_num_threads(1)
    if sys.argv[1] == "calibrate":
        print(calibrate(float(sys.argv[2])))
        return
    spec, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    side, folder = spec.pop("side"), Path(spec.pop("folder"))
    loop, load = session_loop if side == SESSION else plain_loop, Load(**spec)
    loop(load, folder, rank, Turns(WARM_UP_STEPS, load.steps))


if __name__ == "__main__":
    main()
