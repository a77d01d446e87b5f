"""Where a gang begins, and what its beginning does to those before it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ebbtide.client.messages import DesiredState, Lease, SlotRef
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.coordination.gate import ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import CheckpointMismatch, CommitHopeless, Preempted
from ebbtide_train.session.loop.start import start_rng
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.state import rng
from ebbtide_train.session.step_log import gang_lines
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)


def session_of(run_dir: Path, epoch: int, wants: dict[int, DesiredState] | None = None) -> TrainingSession:
    lease = Lease("job", epoch, (SlotRef("here", 0),))
    settings = gangs.plan_of(run_dir, world=1, epoch=epoch).settings(0)
    return TrainingSession(replace(settings, lease=lease), ScriptedGate(wants or {}, lease=lease))


@pytest.mark.proves("the first rank begins the gang's epoch before any rank reads")
def test_a_gang_that_begins_shuts_out_those_before_it_before_its_first_step(tmp_path: Path) -> None:
    old = CheckpointStore(tmp_path)
    old.begin(6)
    ref = Ref(step=1, epoch=6, world=1, seed=0, global_batch=6, dataset_len=97)
    try:
        with activate(session_of(tmp_path, 7)) as session:
            plain, optimizer, *_ = tiny.build({})
            session.prepare(plain, optimizer)
            with pytest.raises(CommitHopeless, match="epoch 7 has begun"):
                old.publish({"step": 1}, ref)
    finally:
        torch.use_deterministic_algorithms(False)
        old.close()
        old.settle()
    assert CheckpointStore(tmp_path).newest() is None


@pytest.mark.proves("steps that must be run again are counted")
def test_steps_that_must_be_run_again_are_counted(tmp_path: Path) -> None:
    try:
        with pytest.raises(ZeroDivisionError), activate(session_of(tmp_path, 7)) as session:
            plain, optimizer, _, dataset, loss_of = tiny.build({})
            model = session.prepare(plain, optimizer)
            for step in session.steps(total=6):
                for batch in step.batches(dataset):
                    step.backward(loss_of(model(batch.x), batch.y))
                optimizer.zero_grad(set_to_none=True)
                _ = 1 / (3 - step.index)  # after three steps, none of them committed
        with activate(session_of(tmp_path, 8)) as session:
            session.prepare(*tiny.build({})[:2])
    finally:
        torch.use_deterministic_algorithms(False)
    assert [line.lost_steps for line in gang_lines(tmp_path)] == [0, 3]


@pytest.mark.proves("a rank's generators go on where they were")
def test_a_rank_goes_on_with_its_generators_where_they_were_or_is_seeded_by_where_it_stands() -> None:
    member: Any = SimpleNamespace(device=torch.device("cpu"), finished=3, settings=SimpleNamespace(seed=5, rank=0))
    start_rng(member, None)
    first, packed, second = torch.rand(3), rng.capture(member.device), torch.rand(3)
    start_rng(member, packed)
    assert torch.equal(torch.rand(3), second)
    start_rng(member, None)
    assert torch.equal(torch.rand(3), first)


def test_damage_ends_a_start_with_one_error_and_no_step(tmp_path: Path) -> None:
    """A flipped bit within a tensor, which only who reads all of it can find."""
    with pytest.raises(Preempted):
        try:
            with activate(session_of(tmp_path, 7, {3: DesiredState.STOP})):
                tiny.train({"steps": 6})
        finally:
            torch.use_deterministic_algorithms(False)
    file = tmp_path / "e7" / "step-3" / "rank0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.chmod(0o600)
    file.write_bytes(raw)
    plain, optimizer, scheduler, *_ = tiny.build({})
    before = tiny.digest(plain)
    with pytest.raises(CheckpointMismatch, match=r"rank0\.safetensors at byte .*ebbtide checkpoints use"):
        try:
            with activate(session_of(tmp_path, 8)) as session:
                session.prepare(plain, optimizer, scheduler)
        finally:
            torch.use_deterministic_algorithms(False)
    assert tiny.digest(plain) == before, "nothing of it was taken"
