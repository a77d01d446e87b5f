"""A job's checkpoints as the session sees them; what one is made of, tests/platform/storage/checkpoints tells."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ebbtide.config.sections.storage_section import StorageSection
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.storage.checkpoints.manager.resume_decision import resume_from, runs
from ebbtide.storage.checkpoints.run_directory.cleanup import of_checkpoint
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_survey import read_start
from ebbtide.storage.errors import Refused
from ebbtide.storage.objects.store_limits import LIMITS, leave_limits
from ebbtide_train.session.checkpoints import checkpoint_store as checkpoint_module
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref, durable_step
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore, must_be_plain
from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch, CommitHopeless, SessionMisuse
from tests.platform.storage.stores import LocalLeases

REF = Ref(step=0, epoch=1, world=2, seed=3, global_batch=4, dataset_len=10)


def publish(store: CheckpointStore, step: int, *, epoch: int = 1) -> Ref:
    ref = replace(REF, step=step, epoch=epoch)
    store.publish({"x": torch.full((4,), float(step)), "step": step, "tied": torch.ones(8)[2:5]}, ref)
    store.settle()
    return ref


def loaded(store: CheckpointStore) -> float:
    newest = store.newest()
    assert newest is not None
    ref = store.ref(newest)
    assert ref is not None
    value = store.load(ref)["x"]
    assert isinstance(value, torch.Tensor)
    assert value.untyped_storage().resizable(), "or it could not be parked"
    return float(value[0])


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(str(path.relative_to(run_dir)) for path in run_dir.glob("e*/step-*"))


def test_the_newest_is_read_with_what_it_is_of_and_the_last_two_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.begin(1) is None and store.newest() is None and durable_step(tmp_path) == 0
    for step in (1, 2, 3, 4):
        ref = publish(store, step)
    assert loaded(store) == 4 == durable_step(tmp_path)
    assert store.ref(ref.id) == ref
    assert checkpoints(tmp_path) == ["e1/step-3", "e1/step-4"]


def test_a_job_stays_within_what_the_pool_allows_and_goes_on_when_that_is_more(tmp_path: Path) -> None:
    leave_limits(tmp_path, StorageSection(checkpoints_max_per_job=1 << 10, keep_free=1))
    store = CheckpointStore(tmp_path / "train" / "job")
    store.begin(1)
    with pytest.raises(CheckpointFailed, match=r"keep_checkpoints.*raise pool\.storage\.checkpoints_max_per_job"):
        publish(store, 1)
    assert store.newest() is None
    leave_limits(tmp_path, StorageSection(checkpoints_max_per_job=1 << 30, keep_free=1))
    publish(store, 1)
    (tmp_path / LIMITS).unlink()
    (tmp_path / LIMITS).mkdir()  # nobody can tell now
    publish(store, 2)
    assert store._checkpoints.keeping.budget.max_bytes == 1 << 30 and loaded(store) == 2
    store.close()


@pytest.mark.proves("a session's own cleaning knows the readers")
def test_one_that_somebody_reads_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = LocalLeases()
    monkeypatch.setattr(checkpoint_module, "run_leases", lambda paths: leases)
    store = CheckpointStore(tmp_path)
    store.begin(1)
    with leases.hold(of_checkpoint(publish(store, 1).id)):
        for step in (2, 3, 4):
            publish(store, step)
    assert checkpoints(tmp_path) == ["e1/step-1", "e1/step-3", "e1/step-4"]
    store.close()


def test_what_may_pass_is_told_from_what_never_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that may commit later goes on; one that never will must leave."""
    store, ref = CheckpointStore(tmp_path), replace(REF, step=1)
    store.begin(1)
    with store._checkpoints.alone(), pytest.raises(CheckpointFailed, match="is being written") as told:
        store.publish({}, ref)
    assert not isinstance(told.value, CommitHopeless)
    store.publish({}, ref)
    store.settle()
    store.close()


def test_a_later_gang_goes_on_from_there_and_the_one_before_is_told(tmp_path: Path) -> None:
    """Its rank 0 was stopped in mid-commit, its gang was replaced, and now it goes on."""
    old, new = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    assert old.begin(5) is None
    first = publish(old, 3, epoch=5)
    assert new.begin(6) == first.id
    with pytest.raises(CheckpointFailed, match="epoch 6 has begun"):
        publish(old, 4, epoch=5)
    assert loaded(CheckpointStore(tmp_path)) == 3
    publish(new, 4, epoch=6)
    assert loaded(CheckpointStore(tmp_path)) == 4
    with pytest.raises(CheckpointMismatch, match="epoch 6 has begun"):
        CheckpointStore(tmp_path).begin(5)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.begin(1)
    publish(store, 1)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.rename", fail)
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(CheckpointFailed, match="the filesystem is full"):
        publish(store, 2)
    monkeypatch.undo()
    assert loaded(store) == 1
    publish(store, 2)
    publish(store, 2)
    assert loaded(store) == 2, "twice is once"


def ledger_in(shared: Path, *, anew: bool = False) -> str:
    """The identity of the pool's ledger."""
    if anew:
        (shared / "ledger").rename(shared / f"old ledger {len(list(shared.iterdir()))}")
    log = EpochLog.open(shared / "ledger", writer="test")
    log.close()
    return log.ledger


@pytest.mark.proves("being replaced is told from what may pass", "the epoch of a run is that of the ledger's lease")
def test_a_pool_that_was_made_anew_goes_on_with_its_jobs(tmp_path: Path) -> None:
    """Its leases count from 1 again, and those of the old pool reached 57."""
    old, run = ledger_in(tmp_path), tmp_path / "train" / "job"
    stale = CheckpointStore(run)
    assert stale.begin(57, old) is None
    first = publish(stale, 10, epoch=57)
    new, young = ledger_in(tmp_path, anew=True), CheckpointStore(run)
    assert young.begin(3, new) == first.id and young.epoch == 58
    with pytest.raises(CommitHopeless, match="epoch 58 has begun"):
        publish(stale, 11, epoch=57)
    second = publish(young, 20, epoch=58)
    with pytest.raises(CheckpointMismatch, match="not the one that the pool has now"):
        CheckpointStore(run).begin(60, old)
    with pytest.raises(CheckpointMismatch, match="epoch 58 has begun"):
        CheckpointStore(run).begin(2, new)
    last = CheckpointStore(run)
    assert last.begin(4, new) == second.id and last.epoch == 59
    for store in (stale, young, last):
        store.close()


@pytest.mark.proves(
    "a decision is on record",
    "a gang lets others see that it lives",
    "a person decides nothing while a gang lives",
    "a run goes on from a damaged checkpoint by no decision",
    "a start looks at its checkpoint before anything leans on it",
    "what a start finds wrong is said before the start is written",
)
def test_what_is_damaged_is_leaned_on_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts that fail leave nothing that names it, and say what to do; a person decides, and the next start obeys."""
    monkeypatch.setattr(checkpoint_module, "STALE_S", 0.0)
    store = CheckpointStore(tmp_path)
    store.begin(1)
    for step in (10, 20):
        publish(store, step)
    store.close()
    damaged = tmp_path / "e1" / "step-20"
    (damaged / "state.json").chmod(0o600)
    (damaged / "state.json").write_bytes(b"rot")
    with pytest.raises(CheckpointMismatch, match=r"state\.json.*ebbtide checkpoints use"):
        CheckpointStore(tmp_path).begin(2)
    paths = RunPaths(tmp_path, tmp_path.name)
    assert read_start(paths, 2) is None
    checkpoints = CheckpointStore(tmp_path)._checkpoints
    with pytest.raises(Refused, match=r"is damaged.*state\.json"):
        resume_from(checkpoints, CheckpointId(1, 20), who="me", now_s=1.0)
    decided = resume_from(checkpoints, CheckpointId(1, 10), who="me", now_s=1.0)
    assert (decided.epoch, decided.lost_steps, str(decided.instead_of)) == (3, 10, "e1/step-20")
    [line] = [json.loads(text) for text in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert (line["checkpoint"], line["lost_steps"], line["who"]) == ("e1/step-10", 10, "me")
    running = CheckpointStore(tmp_path)
    assert str(running.begin(4)) == "e1/step-10"
    publish(running, 15, epoch=4)
    with pytest.raises(Refused, match="runs, or is parked"):
        resume_from(checkpoints, CheckpointId(1, 10), who="me", now_s=1.0)
    running.close()
    assert not runs(paths)


@pytest.mark.proves("the error of a start says what to do where there is a choice")
def test_what_is_damaged_or_not_of_a_session_is_one_clear_error(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin(1)
    ref = publish(store, 1)
    assert store.ref(replace(ref, step=9).id) is None, "it may only not be seen yet"
    file = tmp_path / "e1" / "step-1" / "rank0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.chmod(0o600)
    file.write_bytes(raw)
    with pytest.raises(CheckpointMismatch, match=r"rank0\.safetensors.*ebbtide checkpoints use"):
        store.load(ref)
    with pytest.raises(CheckpointMismatch, match=r"not written by a session.*--fresh"):
        Ref.from_note(ref.id, {"world": 1})
    (tmp_path / "e1" / "start.json").write_text("rubbish")
    for asked in (store.newest, lambda: durable_step(tmp_path), lambda: store.begin(2)):
        with pytest.raises(CheckpointMismatch, match=r"start\.json") as told:
            asked()
        assert "ebbtide checkpoints use" not in str(told.value), "no checkpoint is wrong"


def test_what_no_checkpoint_can_hold_is_refused_before_the_first_step() -> None:
    must_be_plain({"x": torch.ones(2), "betas": (0.9, 0.999)})
    with pytest.raises(SessionMisuse, match="extras"):
        must_be_plain({"extras": {"fn": test_what_no_checkpoint_can_hold_is_refused_before_the_first_step}})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex128), "complex128"),
        (lambda: torch.eye(3).to_sparse(), "not dense"),
        (lambda: torch.ones(2, device="meta"), "meta"),
    ],
)
def test_a_tensor_that_no_checkpoint_can_hold_is_refused_before_the_first_step(
    tmp_path: Path, make: Callable[[], torch.Tensor], why: str
) -> None:
    with pytest.raises(SessionMisuse, match=f"model.b.*{why}"):
        must_be_plain({"model": {"b": make()}})
    store = CheckpointStore(tmp_path)
    store.begin(1)
    with pytest.raises(CommitHopeless, match=why):  # one that an optimizer makes at its first step
        store.publish({"model": {"b": make()}}, replace(REF, step=1))
