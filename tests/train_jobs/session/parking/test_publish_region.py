"""A region is made a checkpoint where it lies: what comes of one that is whole, and of every other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ebbtide.snapshot.eviction.tensor_eviction import plan
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import RegionKey
from ebbtide.storage.errors import TransferFailed
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref, durable_step
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch
from ebbtide_train.session.parking import takeover as module
from ebbtide_train.session.parking.host_checkpoint import Owner, Portable
from ebbtide_train.session.parking.leftover_regions import Outcome
from ebbtide_train.session.parking.takeover import publish_region, take_over
from tests.builders.training import Nodes
from tests.train_jobs import gangs

EPOCH, STEP = 7, 5


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    begun(tmp_path / "job", EPOCH)
    return tmp_path / "job"


def begun(run_dir: Path, epoch: int) -> None:
    store = CheckpointStore(run_dir)
    store.begin(epoch)
    store.close()


@pytest.fixture
def path(tmp_path: Path, run_dir: Path) -> Path:
    """A whole state of step 5 whose borrower is gone."""
    path = create_region(tmp_path, RegionKey("job", EPOCH, 0), 1 << 16)
    ref = Ref(step=STEP, epoch=EPOCH, world=1, seed=0, global_batch=6, dataset_len=97)
    region = Region.open(path)
    region.begin()
    _, note = Portable({"a": torch.arange(10)}, Owner("job", "", EPOCH), ref).put(plan([]), region.bytes)
    region.seal(note)
    region.hash_payload()
    region.close()
    return path


def test_a_whole_one_is_a_checkpoint_then(path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[float] = []
    monkeypatch.setattr(CheckpointStore, "settle", lambda _self, wait_s: settled.append(wait_s))
    assert publish_region(path, run_dir, keep=2).outcome is Outcome.PUBLISHED
    assert durable_step(run_dir) == STEP and settled == [module.SETTLE_S], "old ones are removed"
    store = CheckpointStore(run_dir)
    found = store.begin(EPOCH + 1)
    assert found is not None and (found.epoch, found.step) == (EPOCH, STEP)
    ref = store.ref(found)
    assert ref is not None and torch.equal(store.load(ref)["a"], torch.arange(10))  # type: ignore[arg-type]
    store.close()


def busy(path: Path, run_dir: Path) -> object:
    return Region.open(path)


def damaged(path: Path, run_dir: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4096] ^= 1
    path.write_bytes(raw)


def of_something_else(path: Path, run_dir: Path) -> None:
    region = Region.open(path)
    region.begin()
    region.seal(b"no note of ours")
    region.close()


def overtaken(path: Path, run_dir: Path) -> None:
    begun(run_dir, EPOCH + 1)


@pytest.mark.parametrize(
    ("change", "outcome", "why"),
    [
        (busy, Outcome.LATER, "used by another process"),
        (damaged, Outcome.USELESS, "are not what was put there"),
        (of_something_else, Outcome.USELESS, "describes no state"),
        (overtaken, Outcome.USELESS, ""),
        (lambda path, _: path.unlink(), Outcome.USELESS, "No such file"),
    ],
)
def test_any_other_is_not(
    path: Path, run_dir: Path, change: Callable[[Path, Path], object], outcome: Outcome, why: str
) -> None:
    held = change(path, run_dir)
    taken = publish_region(path, run_dir, keep=2)
    assert taken.outcome is outcome and why in taken.why and taken.why
    assert durable_step(run_dir) == 0
    if isinstance(held, Region):
        held.close()


def test_what_fails_now_may_do_later(path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise CheckpointFailed("no space left")

    def short(_: Path) -> None:
        raise MemoryError

    monkeypatch.setattr(CheckpointStore, "publish", full)
    assert publish_region(path, run_dir, keep=2).why == "no space left"
    assert publish_region(path, run_dir, keep=2).outcome is Outcome.LATER
    monkeypatch.setattr(module, "read_region", short)
    taken = publish_region(path, run_dir, keep=2)
    assert (taken.outcome, taken.why) == (Outcome.LATER, "there is no memory to read it into")


def test_a_run_that_cannot_be_read_lets_no_gang_begin(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on from further back, or from nothing."""

    def unread(_: object) -> None:
        raise TransferFailed("read", run_dir, errno=5)

    monkeypatch.setattr(module, "look", unread)
    with pytest.raises(CheckpointMismatch, match="this gang cannot begin"):
        take_over(gangs.plan_of(run_dir, world=1, epoch=8).settings(0), Nodes({}), print)
