"""Layers that are unfrozen during a training are trained alike on all ranks."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import ebbtide_train
from tests.train_jobs import gangs, tiny


def train(args: Mapping[str, Any]) -> None:
    session = ebbtide_train.current_session()
    net = tiny.Net(width=16, dropout=0.0)
    net.hidden.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)  # has all of them from the beginning
    model = session.prepare(net, optimizer)
    for step in session.steps(total=args["steps"]):
        if step.index == args["unfreeze_at"]:
            net.hidden.requires_grad_(True)
        for batch in step.batches(tiny.Numbers()):
            step.backward(tiny.loss_of(model(batch.x), batch.y))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    digests = [hashlib.sha256(one.detach().numpy().tobytes()).hexdigest() for one in net.parameters()]
    (session.settings.run_dir / f"digests-{session.rank}").write_text("\n".join(digests))


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="DDP was made when they needed no gradient, and sums none for them"
)
def test_all_ranks_train_them_alike(tmp_path: Path) -> None:
    run_dir = tmp_path / "job"
    train_as = f"{__name__}:train"
    gangs.run(gangs.plan_of(run_dir, world=2, steps=5, train=train_as, global_batch=8, unfreeze_at=2))
    assert (run_dir / "digests-0").read_text() == (run_dir / "digests-1").read_text()
