"""A small training with dropout and a schedule; one line with the exact loss for each step. usage: FOLDER STEPS RANKS

A child does it first, undisturbed, into FOLDER/undisturbed; then this process does the same into FOLDER/parked, and
ends before STEPS as soon as there is a file FOLDER/enough. Of two ranks the second is a child of the first; they
average their gradients over a socket, in every step.
"""

import os
import socket
import sys
import time

import torch
import torch._dynamo  # the first optimizer imports it: here once for all that are forked, over a second each


def average(parameters: list[torch.nn.Parameter], peer: socket.socket, rank: int, last: bool) -> bool:
    """As an all-reduce: the same sum, in the same order, on both ranks. Gives whether it is the last for rank 0."""
    gradients = [parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]
    mine = torch.cat([*gradients, torch.tensor([float(last)])])
    size = mine.numel() * mine.element_size()
    other = bytearray(size)
    if rank == 0:
        peer.sendall(mine.numpy().tobytes())
    got = memoryview(other)
    while got:
        got = got[peer.recv_into(got) :]
    if rank == 1:
        peer.sendall(mine.numpy().tobytes())
    theirs = torch.frombuffer(other, dtype=mine.dtype)
    mean = ((mine + theirs) if rank == 0 else (theirs + mine)) / 2
    for parameter, part in zip(parameters, torch.split(mean[:-1], [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter).clone()
    return bool((mine if rank == 0 else theirs)[-1])


def train(path: str, steps: int, pause_s: float, enough: str, rank: int = 0, peer: socket.socket | None = None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    torch.manual_seed(rank)
    with open(path, "a") as out:
        for step in range(steps):
            batch = torch.randn(16, 32)
            loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            last = os.path.exists(enough)
            if peer is not None:
                last = average(list(model.parameters()), peer, rank, last)
            optimizer.step()
            schedule.step()
            out.write(f"{step} {float(loss).hex()}\n")
            out.flush()
            if last:
                return
            time.sleep(pause_s)


def train_all(path: str, steps: int, pause_s: float, ranks: int, enough: str = "") -> None:
    if ranks == 1:
        train(path, steps, pause_s, enough)
        return
    first, second = socket.socketpair()
    child = os.fork()
    if child == 0:
        first.close()
        train(f"{path}-1", steps, pause_s, enough, 1, second)
        os._exit(0)
    second.close()
    train(path, steps, pause_s, enough, 0, first)
    os.waitpid(child, 0)


torch.set_num_threads(1)
FOLDER, STEPS, RANKS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
child = os.fork()  # one import of torch for both
if child == 0:
    train_all(f"{FOLDER}/undisturbed", STEPS, 0.0, RANKS)
    os._exit(0)
os.waitpid(child, 0)
train_all(f"{FOLDER}/parked", STEPS, 0.01, RANKS, f"{FOLDER}/enough")
