"""One run's checkpoints, as a process uses them that holds all of the state; and what damage does to readers."""

import errno
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.storage.checkpoints.manager.checkpoint_manager import IfCorrupt, RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.lineage import Start
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.names import COMMIT, MANIFEST
from ebbtide.storage.objects.manifest import MAX_MANIFEST_BYTES
from tests.builders.checkpoints import flip
from tests.platform.storage.checkpoints.runs import CHUNK, at, ids, make_run, same, state_at, step_read
from tests.platform.storage.failing_calls import CountedCalls

read_state = OpenCheckpoint.read_state


@pytest.fixture
def run(tmp_path: Path) -> RunCheckpoints:
    found = make_run(tmp_path, keep=Retention(5))
    for step in (1, 2, 3):
        found.save(state_at(step), epoch=1, step=step, note={"seed": step})
    found.settle()
    return found


def file_of(run: RunCheckpoints, step: int, name: str = "rank0.safetensors") -> Path:
    return run.paths.checkpoint(at(f"e1/step-{step}")) / name


def test_the_newest_is_read_to_the_bit(run: RunCheckpoints) -> None:
    found = run.read_newest(read_state)
    assert found is not None and found.id == at("e1/step-3") and found.skipped == ()
    assert same(found.value, state_at(3))


@pytest.mark.parametrize("look", ["stat", "lstat"])
def test_a_look_that_fails_anywhere_in_a_save_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """A share that answers EIO or ESTALE for a moment; whoever catches StorageError must not be killed by it."""
    real, count, broken_at = getattr(Path, look), 0, 0

    def fail(self: Path, **how: Any) -> Any:
        nonlocal count
        if str(self).startswith(str(tmp_path)):
            count += 1
            if count == broken_at:
                raise OSError(errno.ESTALE, "Stale file handle", str(self))
        return real(self, **how)

    def attempt(number: int) -> None:
        nonlocal count, broken_at
        run = make_run(tmp_path / str(number), keep=Retention(1), grace_s=-1)
        run.save(state_at(1), epoch=1, step=1)
        run.settle()
        left = run.paths.epoch(0) / ".tmp-step-9"
        left.mkdir(parents=True)
        (left / "rank0.safetensors").write_bytes(b"half")
        count, broken_at = 0, number
        monkeypatch.setattr(Path, look, fail)
        try:
            with suppress(StorageError):
                run.save(state_at(2), epoch=1, step=2)
                run.settle()
            with suppress(StorageError):
                run.begin_epoch(2)
                run.list()
                run.clean(2)
        finally:
            monkeypatch.undo()

    attempt(10_000)
    for number in range(1, count + 1, 5):  # two parameters and 5 share no factor with what repeats
        attempt(number)


@pytest.mark.proves("a step that is found committed is durable before that is said")
def test_a_step_that_is_found_committed_is_durable_before_that_is_said(tmp_path: Path) -> None:
    """The attempt before has renamed it, and nobody knows whether that reached the disk."""
    fails, synced = [True], 0

    class Unsure(CountedCalls):
        def fsync(self, fd: int) -> None:
            nonlocal synced
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/e1") and (tmp_path / "train/tide/e1/step-1").exists():
                synced += 1
                if fails.pop() if fails else False:
                    raise OSError(errno.EIO, "Input/output error")
            super().fsync(fd)

    run = make_run(tmp_path, disk=Disk(Unsure()))
    with pytest.raises(TransferFailed, match="cannot sync"):
        run.save(state_at(1), epoch=1, step=1)
    synced = 0
    run.save(state_at(1), epoch=1, step=1)
    assert synced == 1


def test_before_the_first_there_is_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert (run.newest(), run.read_newest(read_state), run.list(), run.lineage()) == (None, None, [], [])
    with pytest.raises(NotPublished, match="run tide has no checkpoint e1/step-1"):
        run.open(at("e1/step-1"))


def test_what_is_listed_says_what_its_writer_said(run: RunCheckpoints) -> None:
    listed = run.list()
    assert [str(one.id) for one in listed] == ["e1/step-3", "e1/step-2", "e1/step-1"]
    for one in listed:
        assert one.about is not None and one.about.note == {"seed": one.id.step} and one.about.ranks == 1
        assert one.counts and not one.problem and one.size_bytes > 20_000 and one.written_s > 1e9


def test_a_damaged_one_is_listed_with_its_problem(run: RunCheckpoints) -> None:
    file_of(run, 2, MANIFEST).write_bytes(b"{}")
    file_of(run, 1).write_bytes(b"short")
    problems = {one.id.step: one.problem for one in run.list()}
    assert not problems[3] and "manifest" in problems[2] and "rank0.safetensors" in problems[1]


Damage = Any
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a flipped bit in a tensor": (
        lambda run: flip(file_of(run, 3), 2 * CHUNK + 5),
        rf"rank0\.safetensors at byte {2 * CHUNK}",
    ),
    "a flipped bit in the header": (lambda run: flip(file_of(run, 3), 30), ""),
    "a hole": (
        lambda run: file_of(run, 3).write_bytes(
            file_of(run, 3).read_bytes()[:CHUNK] + bytes(file_of(run, 3).stat().st_size - CHUNK)
        ),
        r"rank0\.safetensors at byte [1-9]",  # the first chunk that was looked at; they are read side by side
    ),
    "a truncated file": (lambda run: file_of(run, 3).write_bytes(file_of(run, 3).read_bytes()[:-1]), "rank0"),
    "a missing file": (lambda run: file_of(run, 3).unlink(), r"rank0\.safetensors: .*missing"),
    "a missing index of hashes": (lambda run: file_of(run, 3, "rank0.safetensors.idx").unlink(), r"\.idx"),
    "a changed index of tensors": (
        lambda run: file_of(run, 3, "state.json").write_bytes(
            file_of(run, 3, "state.json").read_bytes().replace(b"cosine", b"linear")
        ),
        r"state\.json",
    ),
    "no COMMIT content": (lambda run: file_of(run, 3, COMMIT).write_bytes(b""), "COMMIT"),
    "a missing manifest": (lambda run: file_of(run, 3, MANIFEST).unlink(), r"manifest\.json: .*missing"),
    "an endless manifest": (
        lambda run: os.truncate(file_of(run, 3, MANIFEST), MAX_MANIFEST_BYTES + 1),
        r"manifest\.json: .*longer than any",
    ),
    "a tensor file of another step": (
        lambda run: file_of(run, 3).write_bytes(file_of(run, 2).read_bytes()),
        r"rank0\.safetensors at byte",
    ),
    "all of another step": (
        lambda run: [
            path.write_bytes(file_of(run, 2, path.name).read_bytes()) for path in file_of(run, 3).parent.iterdir()
        ],
        "this is the manifest of training",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.proves(
    "a manifest of another run, epoch or step is damage",
    "a manifest that is too long is damage",
    "a missing manifest of a checkpoint is damage, and not its absence",
    "an older checkpoint is read only if that is asked for",
)
def test_damage_is_named_and_an_older_one_is_read_only_if_that_is_asked_for(
    run: RunCheckpoints, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, what = DAMAGES[damage]
    if damage == "a flipped bit in the header":  # nobody needs the header to read a state, and nobody is misled
        spoil(run)
        assert step_read(run) == 3
        return
    spoil(run)
    with pytest.raises((Corrupt, NotPublished), match=what) as told:
        run.read_newest(read_state)
    assert "step-3" in str(told.value)
    with caplog.at_level(logging.WARNING):
        found = run.read_newest(read_state, if_corrupt=IfCorrupt.OLDER)
    assert found is not None and found.id == at("e1/step-2") and same(found.value, state_at(2))
    [(skipped, error)] = found.skipped
    assert skipped == at("e1/step-3") and isinstance(error, StorageError)
    assert "an older one is read" in caplog.text


def test_if_all_are_damaged_that_is_said(run: RunCheckpoints) -> None:
    for step in (1, 2, 3):
        file_of(run, step).unlink()
    with pytest.raises(Corrupt, match="step-1"):
        run.read_newest(read_state, if_corrupt=IfCorrupt.OLDER)


def test_a_filesystem_that_fails_is_no_reason_to_take_an_older_one(run: RunCheckpoints) -> None:
    asked: list[int] = []

    def fails_once(opened: OpenCheckpoint) -> None:
        asked.append(opened.id.step)
        if len(asked) == 1:
            raise TransferFailed("read", "x", errno=5)

    with pytest.raises(TransferFailed):
        run.read_newest(fails_once, if_corrupt=IfCorrupt.OLDER)
    assert asked == [3]


def test_one_whose_origin_is_gone_says_so(run: RunCheckpoints) -> None:
    run.begin_epoch(2, Start(at("e1/step-9")))
    with pytest.raises(NotPublished, match="e1/step-9"):
        run.read_newest(read_state)
    found = run.read_newest(read_state, if_corrupt=IfCorrupt.OLDER)
    assert found is not None and found.id == at("e1/step-3")


def test_a_gang_that_fell_back_goes_on_from_there(run: RunCheckpoints) -> None:
    run.begin_epoch(2, Start(at("e1/step-2")))
    assert step_read(run) == 2
    run.save(state_at(4), epoch=2, step=4)
    assert [str(one) for one in run.lineage()] == ["e2/step-4", "e1/step-2", "e1/step-1"]


@pytest.mark.proves("a process writes one checkpoint at a time")
def test_one_save_at_a_time(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, inner: Any) -> None:
            self.read, self._inner = inner.read, inner

        def write(self, *arguments: Any, **more: Any) -> Any:
            inside.set()
            go_on.wait(20)
            return self._inner.write(*arguments, **more)

    object.__setattr__(run.ports, "transport", Slow(run.ports.transport))
    thread = threading.Thread(target=lambda: run.save(state_at(1), epoch=1, step=1))
    thread.start()
    assert inside.wait(20)
    with pytest.raises(Refused, match="being written"):
        run.save(state_at(2), epoch=1, step=2)
    go_on.set()
    thread.join()
    run.save(state_at(2), epoch=1, step=2)
    assert ids(run) == ["e1/step-2", "e1/step-1"]


@pytest.mark.parametrize("state", [{"x": object()}, {"x": {1, 2}}])
def test_a_state_that_cannot_be_kept_changes_nothing(run: RunCheckpoints, state: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="x is a"):
        run.save(state, epoch=1, step=4)
    with pytest.raises(Refused, match="note"):
        run.save({}, epoch=1, step=4, note={"x": []})  # type: ignore[dict-item]
    assert step_read(run) == 3


def test_a_stranger_in_the_directory_is_not_listed(run: RunCheckpoints) -> None:
    (run.paths.epoch(1) / "step-9").mkdir()
    (run.paths.epoch(1) / "step-9" / "COMMIT").write_text("?")
    with pytest.raises(Corrupt, match=r"step-9/manifest\.json"):
        run.read_newest(read_state)
    assert run.list()[0].problem


def test_reading_while_it_is_removed_gives_right_values_or_says_so(run: RunCheckpoints) -> None:
    with run.open(at("e1/step-2")) as opened:
        index = opened.index
        run.ports.disk.remove_tree(run.paths.checkpoint(at("e1/step-2")))
        with pytest.raises(NotPublished, match="was removed"):
            opened.read_tensors(index.tensors)


@pytest.mark.proves("a reader that is overtaken by commits reads the newest")
def test_a_reader_that_is_overtaken_by_commits_reads_the_newest(tmp_path: Path) -> None:
    """Between its look and its reading two newer ones are committed, and the one it was about to read is removed."""
    run = make_run(tmp_path, keep=Retention(1))
    run.save(state_at(1), epoch=1, step=1)
    seen: list[int] = []

    def read(opened: OpenCheckpoint) -> Any:
        seen.append(opened.id.step)
        if len(seen) < 3:
            run.save(state_at(opened.id.step + 1), epoch=1, step=opened.id.step + 1)
            run.settle()
        return opened.read_state()

    found = run.read_newest(read)
    assert found is not None and found.skipped == () and same(found.value, state_at(3)) and seen == [1, 2, 3]


def test_single_tensors_can_be_read(run: RunCheckpoints) -> None:
    with run.open(at("e1/step-3")) as opened:
        found = opened.read_tensors(["model.bias"])
        assert same(found["model.bias"], state_at(3)["model"]["bias"])
        assert opened.tensor("model.weight").shape == (40, 129)
        with pytest.raises(Refused, match="no tensor 'other'"):
            opened.read_tensors(["other"])


def test_what_the_session_needs_of_a_state_survives(tmp_path: Path) -> None:
    """A model, AdamW by parameter names, a scheduler, and generators, as `ebbtide_train` keeps them."""
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = {
        "model": model.state_dict(),
        "optimizer": {
            "state": {names[id(p)]: dict(values) for p, values in optimizer.state.items()},
            "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        },
        "scheduler": scheduler.state_dict(),
        "extras": {},
        "rng": {"0": torch.get_rng_state()},
    }
    run = make_run(tmp_path)
    run.save(state, epoch=1, step=1)
    found = run.read_newest(read_state)
    assert found is not None and same(found.value, {**state, "model": dict(state["model"])})
