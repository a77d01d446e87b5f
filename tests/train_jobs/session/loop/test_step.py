"""A loop that would lose samples, take some twice, or change their order is refused with one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.client.messages import Lease, SlotRef
from ebbtide_train.session.coordination.gate import ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import CheckpointMismatch, SessionMisuse
from ebbtide_train.session.session import TrainingSession
from tests.builders.training import Holder
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)
LEASE = Lease("job", 7, (SlotRef("here", 0),))


class Fewer(tiny.Numbers):
    def __len__(self) -> int:
        return 90


def trained(step: Any, model: Any, dataset: Any) -> None:
    for batch in step.batches(dataset):
        step.backward(tiny.loss_of(model(batch.x), batch.y))


def twice(step: Any, model: Any, dataset: Any) -> None:
    trained(step, model, dataset)
    trained(step, model, dataset)


def backward_twice(step: Any, model: Any, dataset: Any) -> None:
    for batch in step.batches(dataset):
        loss = tiny.loss_of(model(batch.x), batch.y)
        step.backward(loss)
        step.backward(loss)


def left_early(step: Any, model: Any, dataset: Any) -> None:
    for _ in step.batches(dataset):
        return


def fewer(step: Any, model: Any, dataset: Any) -> None:
    trained(step, model, dataset if step.index == 0 else Fewer())


@pytest.mark.proves(
    "a loop brings each batch back",
    "a loop takes samples in each step",
    "a loop takes the samples of a step once",
    "the data set of a job does not change its length",
)
@pytest.mark.parametrize(
    ("turn", "error", "why"),
    [
        (twice, SessionMisuse, r"were taken already"),
        (backward_twice, SessionMisuse, r"backward\(\) without a batch"),
        (left_early, SessionMisuse, r"got no step\.backward"),
        (lambda step, model, dataset: None, SessionMisuse, "took no samples"),
        (fewer, CheckpointMismatch, "has 90 samples, this job began with 97.*--fresh.*another name"),
    ],
)
def test_a_turn_that_is_no_step_is_refused(
    tmp_path: Path, turn: Callable[[Any, Any, Any], None], error: type[Exception], why: str
) -> None:
    settings = gangs.plan_of(tmp_path, world=1, epoch=7).settings(0)
    try:
        with (
            pytest.raises(error, match=why),
            activate(TrainingSession(settings, ScriptedGate({}, lease=LEASE))) as session,
        ):
            plain, optimizer, _, dataset, _ = tiny.build({})
            model = session.prepare(plain, optimizer)
            for step in session.steps(total=3):
                turn(step, model, dataset)
                optimizer.zero_grad(set_to_none=True)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.proves("a state that no checkpoint can hold is refused before the first step")
def test_a_state_that_no_checkpoint_can_hold_is_refused_before_the_first_step(tmp_path: Path) -> None:
    settings = gangs.plan_of(tmp_path, world=1, epoch=7).settings(0)
    try:
        with (
            pytest.raises(SessionMisuse, match=r"extras\.odd\.x is a set"),
            activate(TrainingSession(settings, ScriptedGate({}, lease=LEASE))) as session,
        ):
            plain, optimizer, *_ = tiny.build({})
            session.prepare(plain, optimizer, odd=Holder({"x": {1, 2}}))
    finally:
        torch.use_deterministic_algorithms(False)


def test_one_model_is_prepared_once(tmp_path: Path) -> None:
    settings = gangs.plan_of(tmp_path, world=1, epoch=7).settings(0)
    try:
        with (
            pytest.raises(SessionMisuse, match="called twice"),
            activate(TrainingSession(settings, ScriptedGate({}, lease=LEASE))) as session,
        ):
            plain, optimizer, *_ = tiny.build({})
            for _ in range(2):
                session.prepare(plain, optimizer)
    finally:
        torch.use_deterministic_algorithms(False)
