"""State that grows after `prepare` is committed, and a later gang goes on from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.client.messages import DesiredState, Lease, SlotRef
from ebbtide_train.session.coordination.gate import ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import CheckpointMismatch, Preempted
from ebbtide_train.session.session import TrainingSession
from tests.train_jobs import gangs, tiny

Grow = Callable[[Any, Any, int], None]


def by_a_group(net: Any, optimizer: Any, step: int) -> None:
    """As gradual unfreezing does."""
    if step == 1:
        optimizer.add_param_group({"params": list(net.hidden.parameters()), "lr": 1e-3})


def by_a_buffer(net: Any, optimizer: Any, step: int) -> None:
    """As modules do that make their buffers when they see their first input."""
    if step == 0:
        net.register_buffer("seen", torch.zeros(3))


def by_a_longer_buffer(net: Any, optimizer: Any, step: int) -> None:
    net.history = torch.zeros(step + 2)


def gang(run_dir: Path, epoch: int, grow: Grow, wants: dict[int, Any]) -> None:
    lease = Lease("job", epoch, (SlotRef("here", 0),))
    settings = gangs.plan_of(run_dir, world=1, epoch=epoch).settings(0)
    session = TrainingSession(settings, ScriptedGate(wants, lease=lease))
    with activate(session):
        net = tiny.Net(width=16, dropout=0.0)
        if grow is by_a_longer_buffer:
            net.register_buffer("history", torch.zeros(1))
        optimizer = torch.optim.AdamW([net.embedding.weight], 1e-2)
        model = session.prepare(net, optimizer)
        for step in session.steps(total=6):
            for batch in step.batches(tiny.Numbers()):
                step.backward(tiny.loss_of(model(batch.x), batch.y))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            net.zero_grad(set_to_none=True)
            grow(net, optimizer, step.index)


@pytest.mark.xfail(
    strict=True, raises=CheckpointMismatch, reason="what a checkpoint holds must fit the objects as they were prepared"
)
@pytest.mark.parametrize("grow", [by_a_group, by_a_buffer, by_a_longer_buffer])
def test_a_later_gang_goes_on_from_it(grow: Grow, tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        gang(tmp_path / "job", 7, grow, {3: DesiredState.STOP})
    gang(tmp_path / "job", 8, grow, {})
