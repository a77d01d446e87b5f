"""Where a gang begins, and what its beginning does to those before it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ebbtide.client.messages import Lease, SlotRef, Want
from ebbtide_train.session.checkpoint import CheckpointStore
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import CheckpointMismatch, CommitHopeless, Preempted
from ebbtide_train.session.gate import ScriptedGate
from ebbtide_train.session.ref import Ref
from ebbtide_train.session.session import TrainingSession
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)


def session_of(run_dir: Path, epoch: int, wants: dict[int, Want] | None = None) -> TrainingSession:
    lease = Lease("job", epoch, (SlotRef("here", 0),))
    settings = gangs.plan_of(run_dir, world=1, epoch=epoch).settings(0)
    return TrainingSession(replace(settings, lease=lease), ScriptedGate(wants or {}, lease=lease))


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


def test_damage_ends_a_start_with_one_error_and_no_step(tmp_path: Path) -> None:
    """A flipped bit within a tensor, which only who reads all of it can find."""
    with pytest.raises(Preempted):
        try:
            with activate(session_of(tmp_path, 7, {3: Want.STOP})):
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
