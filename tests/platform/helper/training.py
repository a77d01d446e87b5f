"""A small training with dropout and a schedule; one line with the exact loss for each step. usage: FOLDER STEPS

A child does it first, undisturbed, into FOLDER/undisturbed; then this process does the same into FOLDER/parked.
"""

import os
import sys
import time

import torch


def train(path: str, steps: int, pause_s: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with open(path, "a") as out:
        for step in range(steps):
            batch = torch.randn(16, 32)
            loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            out.write(f"{step} {float(loss).hex()}\n")
            out.flush()
            time.sleep(pause_s)


torch.set_num_threads(1)
child = os.fork()  # one import of torch for both
if child == 0:
    train(f"{sys.argv[1]}/undisturbed", int(sys.argv[2]), 0.0)
    os._exit(0)
os.waitpid(child, 0)
train(f"{sys.argv[1]}/parked", int(sys.argv[2]), 0.01)
