"""Saving while training goes on: what it sees, what it waits for, and what it never hears of."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.storage.arenas import Arenas
from ebbtide.storage.errors import NoRoom, Refused, StorageError, WaitTimeout
from ebbtide.storage.training.background import BackgroundSaver, IfBusy
from ebbtide.storage.training.host_copy import HostCopies
from ebbtide.storage.training.places import CheckpointId
from tests.platform.storage.training.runs import at, make_run, state_at, step_read

PATIENCE_S = 120.0


class Door:
    """A write that goes on when it is told to."""

    def __init__(self, write: Callable[[dict[str, Any]], CheckpointId] = lambda state: at("e1/step-1")) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self._write = write

    def __call__(self, state: dict[str, Any]) -> CheckpointId:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return self._write(state)


def saver(arenas: Arenas | None = None, **how: Any) -> BackgroundSaver:
    return BackgroundSaver(HostCopies(arenas or Arenas()), **how)


def test_what_is_written_is_the_state_as_it_was(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    door = Door(lambda state: run.save(state, epoch=1, step=1))
    state = state_at(1)
    save = saver().begin(state, door)
    assert door.entered.wait(PATIENCE_S) and not save.done and save.error is None
    state["model"]["weight"].zero_()  # training goes on
    state["step"] = 2
    door.opened.set()
    assert save.wait(PATIENCE_S) == at("e1/step-1") and save.done
    assert step_read(run) == 1


def test_a_failure_is_told_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def full(state: dict[str, Any]) -> CheckpointId:
        raise NoRoom("the filesystem is full")

    with caplog.at_level(logging.WARNING):
        save = saver().begin({"x": torch.ones(2)}, full)
        with pytest.raises(NoRoom, match="is full"):
            save.wait(PATIENCE_S)
    assert isinstance(save.error, NoRoom) and "is full" in caplog.text


def test_a_bug_is_told_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    save = saver().begin({"x": torch.ones(2)}, lambda state: state["nobody"])
    with pytest.raises(KeyError):
        save.wait(PATIENCE_S)
    assert "Traceback" in caplog.text


@pytest.mark.proves("a failure of a background save hurts no training")
def test_a_state_that_cannot_be_copied_is_told_and_hurts_nobody(tmp_path: Path) -> None:
    """The write is begun all the same: other ranks may be waiting in it, and must hear what is wrong."""
    run = make_run(tmp_path)
    state = {"x": torch.empty(2, device="meta")}
    save = saver().begin(state, lambda given: run.save(given, epoch=1, step=1))
    assert save.done and isinstance(save.error, Refused) and "'x' cannot be copied" in save.why_not_copied


def _holds_itself() -> dict[str, Any]:
    state: dict[str, Any] = {"x": torch.ones(2)}
    state["me"] = state
    return state


@pytest.mark.parametrize("state", [{"x": {"y": threading.Lock()}}, {"x": (i for i in range(0))}, _holds_itself()])
def test_a_state_that_nothing_can_copy_is_told_and_hurts_nobody(tmp_path: Path, state: dict[str, Any]) -> None:
    run = make_run(tmp_path)
    save = saver().begin(state, lambda given: run.save(given, epoch=1, step=1))
    assert save.done and isinstance(save.error, Refused) and save.why_not_copied


@pytest.mark.proves("a second background save waits for the first or is turned away")
def test_the_second_one_waits_for_the_first() -> None:
    background, door = saver(), Door()
    order: list[str] = []
    first = background.begin({"x": torch.ones(2)}, door)
    assert not first.done and door.entered.wait(PATIENCE_S) and background.busy

    def let_go() -> None:
        order.append("first may end")
        door.opened.set()

    threading.Timer(0.3, let_go).start()
    second = background.begin({"x": torch.ones(2)}, lambda state: at("e1/step-2"))
    order.append("second has begun")
    assert order == ["first may end", "second has begun"]
    assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (at("e1/step-1"), at("e1/step-2"))
    assert background.settle(PATIENCE_S) and not background.busy


@pytest.mark.parametrize("how", [{"if_busy": IfBusy.REFUSE}, {"if_busy": IfBusy.WAIT, "patience_s": 0.2}])
def test_the_second_one_is_turned_away_if_it_shall_not_wait(how: dict[str, Any]) -> None:
    background, door = saver(**how), Door()
    first = background.begin({"x": torch.ones(2)}, door)
    assert door.entered.wait(PATIENCE_S)
    second = background.begin({"x": torch.ones(2)}, lambda state: at("e1/step-2"))
    assert second.done and isinstance(second.error, Refused)
    assert not background.settle(0.1)
    door.opened.set()
    assert first.wait(PATIENCE_S) == at("e1/step-1")
    assert background.settle(PATIENCE_S)
    assert background.begin({}, lambda state: at("e1/step-3")).wait(PATIENCE_S) == at("e1/step-3")


def test_waiting_has_an_end() -> None:
    door = Door()
    save = saver().begin({"x": torch.ones(2)}, door)
    with pytest.raises(WaitTimeout, match="still being written"):
        save.wait(0.1)
    door.opened.set()
    save.wait(PATIENCE_S)


@pytest.mark.parametrize("fails", [False, True])
def test_one_save_after_the_other_takes_the_same_memory(fails: bool) -> None:
    """Also after failures, whose tracebacks lead to the copy, and which somebody keeps."""
    arenas = Arenas()
    background, kept = saver(arenas), []

    def write(state: dict[str, Any]) -> CheckpointId:
        view = state["x"][1:]
        if fails:
            try:
                raise OSError(28, "full")
            except OSError as error:
                raise NoRoom(f"full, of {len(view)}") from error
        return at("e1/step-1")

    for _ in range(4):
        save = background.begin({"x": torch.zeros(1 << 20)}, write)
        while not save.done:
            time.sleep(0.01)
        assert background.settle(PATIENCE_S)
        kept.append(save)
    assert arenas.total_bytes == 4 << 20
    assert all(isinstance(save.error, StorageError) == fails for save in kept)


def test_without_memory_for_a_copy_it_is_written_before_training_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    background = saver(Arenas(limit_bytes=2 << 20))
    threads = []

    def write(state: dict[str, Any]) -> CheckpointId:
        threads.append(threading.current_thread())
        return run.save(state, epoch=1, step=1)

    save = background.begin({"x": torch.ones(1 << 20)}, write)
    assert save.done and save.error is None and threads == [threading.current_thread()]
    assert "no memory for a copy" in save.why_not_copied
    assert run.newest() == at("e1/step-1")


@pytest.mark.proves("without a thread a background save is written in the caller's time")
def test_without_a_thread_it_is_written_before_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def short(self: threading.Thread) -> None:
        if self.name == "checkpoint":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", short)
    arenas = Arenas()
    background = saver(arenas)
    for _ in range(2):
        save = background.begin({"x": torch.ones(1 << 20)}, lambda state: at("e1/step-1"))
        assert save.done and save.wait() == at("e1/step-1") and "can't start new thread" in save.why_not_copied
        assert not background.busy and background.settle()
    assert arenas.total_bytes == 4 << 20, "its copy was let go of"


def test_an_interrupt_of_the_training_process_is_not_swallowed() -> None:
    def interrupted(state: dict[str, Any]) -> CheckpointId:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saver(Arenas(limit_bytes=2 << 20)).begin({"x": torch.ones(1 << 20)}, interrupted)
