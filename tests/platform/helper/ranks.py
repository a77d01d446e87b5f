"""Ranks of a DDP training over gloo; each writes a line with its exact loss for each step into FOLDER/NAME-RANK.

usage: FOLDER NAME STEPS PAUSE_S WORLD RANK

RANK "all": the ranks are children of this process, they find each other by a store that rank 0 keeps, and their
connections stay until the end. A number: this process is that rank; they find each other by a file, and cooperate:
while FOLDER/park is there they stand at the end of a step, the same for all, without a group and without a socket.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: here once for all that are forked, over a second each
import torch.distributed as dist
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]


def store_of(rank: int) -> Any:
    """Rank 0 keeps it; where, it writes into a file."""
    told = FOLDER / f"{NAME}-port"
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, WORLD, is_master=True, wait_for_workers=False, use_libuv=False)
        told.with_suffix(".tmp").write_text(str(store.port))
        told.with_suffix(".tmp").rename(told)
        return store
    while not told.exists():
        time.sleep(0.01)
    return TCPStore("127.0.0.1", int(told.read_text()), WORLD, is_master=False, use_libuv=False)


def meet(model: torch.nn.Module, rank: int, round_: int) -> torch.nn.parallel.DistributedDataParallel:
    """A group, and the model wrapped for it."""
    store = store_of(rank) if TOGETHER else FileStore(str(FOLDER / f"{NAME}-store-{round_}"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    return torch.nn.parallel.DistributedDataParallel(model)


def all_are_to_park() -> bool:
    """Whether one of them has seen the word: all hear so in the same step."""
    asked = torch.tensor([int((FOLDER / "park").exists())])
    dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return bool(asked.item())


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    torch.manual_seed(rank)
    rounds = 0
    wrapped = meet(model, rank, rounds)
    with (FOLDER / f"{NAME}-{rank}").open("a") as out:
        for step in range(STEPS):
            batch = torch.randn(16, 32)
            loss = torch.nn.functional.mse_loss(wrapped(batch), batch.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            out.write(f"{step} {float(loss).hex()}\n")
            out.flush()
            time.sleep(PAUSE_S)
            if not TOGETHER and all_are_to_park():
                del wrapped, loss
                dist.destroy_process_group()
                rounds += 1
                (FOLDER / f"parked-{rounds}-{rank}").touch()
                while (FOLDER / "park").exists():
                    time.sleep(0.01)
                wrapped = meet(model, rank, rounds)
    dist.destroy_process_group()


def train_all() -> None:
    """Torch is imported once for all of them; this process does nothing with it."""
    ranks = []
    for rank in range(WORLD):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            train(rank)
            os._exit(0)
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in ranks]))


torch.set_num_threads(1)
FOLDER, NAME, STEPS, PAUSE_S = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
WORLD, TOGETHER = int(sys.argv[5]), sys.argv[6] == "all"
train_all() if TOGETHER else train(int(sys.argv[6]))
