"""A small training with dropout and a schedule; one line with the exact loss for each step. usage: OUT STEPS"""

import sys
import time

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(sys.argv[2]))
with open(sys.argv[1], "a") as out:
    for step in range(int(sys.argv[2])):
        batch = torch.randn(16, 32)
        loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        out.write(f"{step} {loss.item().hex()}\n")
        out.flush()
        time.sleep(0.005)
