"""What a rank is told of its job; what it makes of it, tests of the session tell."""

from pathlib import Path

import pytest

from ebbtide.client.messages import Lease, SlotRef
from ebbtide_train.pool_trainer import job_section
from ebbtide_train.session.coordination.gate import ScriptedGate
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.worker import job_plan as plan_module
from ebbtide_train.worker import training_rank
from ebbtide_train.worker.job_plan import JobPlan, Place, take_place


def test_what_a_file_says_of_a_job_reaches_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "_place", [])
    lease = Lease("job", 3, (SlotRef("node", 0), SlotRef("node", 1)))
    take_place(Place(1, lease), {})
    said = {
        "seed": 7,
        "checkpoint_every_s": 11.0,
        "keep_checkpoints": 5,
        "bucket_cap_mb": 3.0,
        "in_place": False,
    }
    section = job_section("job", workers=2, global_batch=12, micro_batch=4, **said)
    plan = JobPlan(section=section, incarnation="i", shared_dir=str(tmp_path), lock_dir=str(tmp_path / "slots"))
    settings = training_rank._settings(plan)
    assert {name: getattr(settings, name) for name in said} == said
    assert (settings.global_batch, settings.micro_batch_max, settings.rank, settings.world) == (12, 4, 1, 2)
    session = TrainingSession(settings, ScriptedGate({}, lease=lease))
    assert session._store._checkpoints.keeping.retention.keep_last == 5
