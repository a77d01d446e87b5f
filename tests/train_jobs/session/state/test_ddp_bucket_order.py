"""DDP's buckets stay as they are before the first backward pass: those whose gradients come first first."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.session.state import ddp_bucket_order
from ebbtide_train.session.state.ddp_wrapper import DdpWrapper
from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.step_log_comparison import compare
from tests.train_jobs import gangs

SMALL_MB = 0.001  # so that each layer has buckets of its own


class Layers(nn.Module):
    """Used in another order than they are defined in, and one of them now and then only."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 64)
        self.first = nn.Linear(64, 64)
        self.seldom = nn.Linear(64, 64)
        self.also = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The seldom one, if it is its turn."""
        x = self.first(x)
        found: torch.Tensor = self.last(self.seldom(x) if self.also else x)
        return found


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def orders(made: DistributedDataParallel, steps: int) -> list[list[int]]:
    """For each step, the numbers of the parameters (as they are defined) in the order in which they are reduced."""

    def note(  # torch looks at these annotations
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        names.append([name for one in bucket.parameters() for name, other in made.named_parameters() if other is one])
        return done

    names: list[list[str]] = []
    made.register_comm_hook(None, note)
    found = []
    for _ in range(steps):
        names.clear()
        made(torch.ones(2, 64)).sum().backward()
        found.append([list(dict(made.named_parameters())).index(name) for bucket in names for name in bucket])
    return found


@pytest.mark.usefixtures("alone")
def test_buckets_stay_and_begin_with_the_parameters_defined_last() -> None:
    found = orders(ddp_bucket_order.ddp(Layers(), unused_parameters=False, bucket_cap_mb=SMALL_MB), 3)
    assert found == [[5, 4, 3, 2, 1, 0]] * 3
    moving = orders(DistributedDataParallel(Layers(), bucket_cap_mb=SMALL_MB), 3)
    assert moving[0] != moving[1] == moving[2], "else nothing would need to be fixed"


@pytest.mark.usefixtures("alone")
def test_without_these_calls_of_torch_s_it_is_made_so_that_it_never_rebuilds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Bare:
        """A reducer of another torch."""

    monkeypatch.setattr(ddp_bucket_order, "_is_settled", lambda made: False)
    with caplog.at_level(logging.WARNING):
        made = ddp_bucket_order.ddp(Layers(), unused_parameters=False)
    assert made.find_unused_parameters
    assert "find_unused_parameters does it instead" in caplog.text
    monkeypatch.undo()
    assert not ddp_bucket_order._is_settled(type("Made", (), {"reducer": Bare()})())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("said", [False, True])
def test_parameters_that_are_left_out_are_told_of_at_once_unless_it_is_meant(said: bool) -> None:
    model = Layers()
    prepared = DdpWrapper(model, unused_parameters=said)
    prepared.wrap(device=torch.device("cpu"), bucket_cap_mb=25.0, init_sync=True)
    prepared(torch.ones(2, 64)).sum().backward()
    prepared.end_step()
    model.also = False
    prepared(torch.ones(2, 64)).sum().backward()
    if said:
        prepared.end_step()
        return
    with pytest.raises(SessionMisuse, match="find_unused_parameters=True"):
        prepared.end_step()


def _meaning_it(plan: Any, rank: int, wants: Any) -> None:
    """The tiny job, whose author has said that parameters may be left out."""
    init = DdpWrapper.__init__

    def said(self: DdpWrapper, module: nn.Module, *, unused_parameters: bool = False) -> None:
        init(self, module, unused_parameters=True)

    DdpWrapper.__init__ = said  # type: ignore[method-assign]
    gangs.rank_main(plan, rank, wants)


@pytest.mark.timeout(150)
def test_parks_leave_no_trace_either_where_parameters_may_be_left_out(tmp_path: Path) -> None:
    logs = {}
    for name, wants in (("calm", {}), ("parked", {2: Away(), 4: Away()})):
        plan = gangs.plan_of(tmp_path / name, world=3, steps=7, options={"bucket_cap_mb": SMALL_MB})
        gangs.run(plan, wants, _meaning_it)
        logs[name] = step_lines(tmp_path / name)
    assert compare(logs["parked"], logs["calm"]).losses_identical
