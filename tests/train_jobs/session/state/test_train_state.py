"""What a session looks after comes back as it was, whatever an author's objects make of their state."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ebbtide.client.messages import DesiredState, Lease, SlotRef
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import BEGIN_ANEW, CheckpointMismatch, Preempted, SessionMisuse
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.state.train_state import TrainState
from tests.builders.training import Holder
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)


class Drawing:
    """A generator of the author's own, and sums of what it drew: new tensors each time, and tensors that live."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)
        self.sums: defaultdict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(1))

    def draw(self) -> float:
        self.sums["all"] += torch.rand(1, generator=self.generator)
        return self.sums["all"].item()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "sums": self.sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.generator.set_state(state_dict["generator"])
        self.sums["all"] = state_dict["sums"]["all"].clone()


class Weighing:
    """Says of its state what it finds in the model at that moment."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.loaded = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.weight.detach().sum()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict["sum"]


class Warming(torch.optim.lr_scheduler.LambdaLR):
    """A scheduler that keeps a tensor, as they do for rates that are tensors."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen = torch.zeros(1)
        super().__init__(optimizer, lambda step: 1.0)

    def step(self, epoch: int | None = None) -> None:
        self.seen += 1
        super().step(epoch)


def drawn(run_dir: Path, wants: Mapping[int, DesiredState | Away], *, epoch: int = 7, into: list[float]) -> float:
    """Train, and draw once in each of four steps; how often the scheduler was asked, by its own count."""
    lease = Lease("job", epoch, (SlotRef("here", 0),))
    settings = gangs.plan_of(run_dir, world=1, epoch=epoch).settings(0)
    try:
        with activate(TrainingSession(settings, ScriptedGate(wants, lease=lease))) as session:
            plain, optimizer, _, dataset, loss_of = tiny.build({})
            scheduler, drawing = Warming(optimizer), Drawing()
            model = session.prepare(plain, optimizer, scheduler, drawing=drawing)
            for step in session.steps(total=4):
                for batch in step.batches(dataset):
                    step.backward(loss_of(model(batch.x), batch.y))
                into.append(drawing.draw())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
            return scheduler.seen.item()
    finally:
        torch.use_deterministic_algorithms(False)


def test_objects_that_make_tensors_when_they_are_asked_for_their_state_can_park(tmp_path: Path) -> None:
    """In place, and leaving from there: what they drew is what an undisturbed run draws."""
    calm: list[float] = []
    count = drawn(tmp_path / "calm", {}, into=calm)
    parked: list[float] = []
    away = Away(until=lambda report: report.durable_step == 2)
    assert drawn(tmp_path / "parked", {2: away}, into=parked) == count
    assert parked == calm
    left: list[float] = []
    with pytest.raises(Preempted):
        drawn(tmp_path / "left", {2: Away(then=DesiredState.STOP)}, into=left)
    assert drawn(tmp_path / "left", {}, epoch=9, into=left) == count
    assert left == calm


def test_objects_are_asked_for_their_state_before_the_tensors_leave(tmp_path: Path) -> None:
    def weighed(wants: Mapping[int, DesiredState | Away], epoch: int) -> tuple[float, float]:
        """The sum of a weight at the start, and the one in the checkpoint that this gang found."""
        lease = Lease("job", epoch, (SlotRef("here", 0),))
        settings = gangs.plan_of(tmp_path, world=1, epoch=epoch).settings(0)
        try:
            with activate(TrainingSession(settings, ScriptedGate(wants, lease=lease))) as session:
                plain, optimizer, _, dataset, loss_of = tiny.build({})
                weighing = Weighing(next(plain.parameters()))
                model = session.prepare(plain, optimizer, weighing=weighing)
                before = weighing.weight.sum().item()
                for step in session.steps(total=4):
                    for batch in step.batches(dataset):
                        step.backward(loss_of(model(batch.x), batch.y))
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                return before, weighing.loaded.item()
        finally:
            torch.use_deterministic_algorithms(False)

    with pytest.raises(Preempted):
        weighed({2: Away(then=DesiredState.STOP)}, 7)
    now, then = weighed({}, 9)
    assert now == then != 0


def tracked(**extras: Holder) -> TrainState:
    model = nn.Linear(2, 2)
    return TrainState(model, torch.optim.AdamW(model.parameters()), None, extras)


@pytest.mark.proves("arrays are copied into the state")
def test_what_is_no_tensor_is_as_of_the_moment_and_the_tensors_are_those_that_are_tracked() -> None:
    """A parked job's state is written while training may go on already."""
    tensor = torch.ones(2)
    held: dict[str, Any] = {
        "array": np.zeros(2),
        "seen": Counter("aab"),
        "list": [1, {"x": 2}],
        "default": defaultdict(int, a=1),
        "frozen": MappingProxyType({"t": tensor}),
    }
    found: Any = tracked(mine=Holder(held)).state()
    held["array"][:] = 7
    held["seen"]["a"] = 7
    held["list"][1]["x"] = 7
    held["default"]["a"] = 7
    kept = found["extras"]["mine"]
    assert kept["array"].tolist() == [0, 0] and kept["seen"] == Counter("aab") and type(kept["seen"]) is Counter
    assert (kept["list"], kept["default"]) == ([1, {"x": 2}], {"a": 1})
    assert kept["frozen"]["t"] is tensor


@pytest.mark.proves("an optimizer of another model is refused")
def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(SessionMisuse, match="parameter group 0"):
        TrainState(nn.Linear(2, 2), torch.optim.AdamW(nn.Linear(2, 2).parameters()), None, {})


@pytest.mark.proves(
    "a checkpoint of a loop with a scheduler fits no loop without one",
    "a checkpoint of other parameter groups is refused",
)
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["optimizer"]["groups"][0]["params"].reverse(),
        lambda state: state.update(scheduler={}),
        lambda state: state["extras"].pop("mine"),
        lambda state: state["model"].pop("bias"),
    ],
)
def test_a_state_of_other_objects_is_a_mismatch(change: Any) -> None:
    state = tracked(mine=Holder({})).state()
    tracked(mine=Holder({})).load(state)
    change(state)
    with pytest.raises(CheckpointMismatch, match="does not fit") as told:
        tracked(mine=Holder({})).load(state)
    first = str(told.value).splitlines()[0]
    assert BEGIN_ANEW in first and "`ebbtide submit FILE --fresh`" in first and "another name" in first


@pytest.mark.parametrize("error", [TypeError, AttributeError, AssertionError, IndexError])
def test_what_an_author_s_own_class_raises_for_a_state_of_before_has_the_remedy_too(error: type[Exception]) -> None:
    class Changed(Holder):
        def load_state_dict(self, state: Any) -> None:
            raise error("it has no such field")

    state = tracked(mine=Holder({})).state()
    with pytest.raises(CheckpointMismatch, match=r"--fresh.*What differs: it has no such field"):
        tracked(mine=Changed({})).load(state)
