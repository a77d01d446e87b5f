"""The job that `ebbtide init` writes, to be replaced by one's own; this file is copied as it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import ebbtide_train

TEXT = torch.tensor(list(Path(torch.__file__).read_bytes()))  # real text that every machine with PyTorch has
CONTEXT = 32  # bytes that the model sees to guess the next one


def train(args: Mapping[str, Any]) -> None:
    """A small model learns to write like PyTorch's own sources, byte by byte."""
    session = ebbtide_train.current_session()  # 1: this worker's part of the job
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Embedding(256, 64), torch.nn.Flatten(), torch.nn.Linear(64 * CONTEXT, 256), torch.nn.Linear(256, 256)
    ).to(session.device)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    model = session.prepare(plain, optimizer)  # 2: goes on from the last checkpoint, and wraps in DDP
    samples = [(TEXT[i : i + CONTEXT], TEXT[i + CONTEXT]) for i in range(0, 50_000)]
    for step in session.steps(total=args["steps"]):  # 3: between two turns it may step aside, and loses nothing
        for batch in step.batches(samples):
            loss = cross_entropy(model(batch.x), batch.y)
            step.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step.index % 100 == 99 and session.rank == 0:
            print(f"step {step.index + 1}: loss {loss.item():.2f}", flush=True)
