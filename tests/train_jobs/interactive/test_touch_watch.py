"""A held session goes on when its owner touches it, and not because its keeper has just made the file for that."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ebbtide_train import run_interactive
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.run_interactive import TouchWatch


class Link:
    """A pool in which the session is held by a person."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.resumed = threading.Event()

    def call(self, method: str, *args: object, timeout_s: float = 5.0) -> Any:
        if method == "status":
            return {"jobs": [{"job": "lab", "held": {"by": "ann"}}]}
        self.asked.append((method, *args))
        self.resumed.set()
        return {"changed": True}


def test_what_the_keeper_makes_is_nobodys_touch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_interactive, "TOUCH_LOOK_S", 0.01)
    place, link = SessionFolder(tmp_path / "lab"), Link()
    watch = TouchWatch(place, link, "lab")
    watch.start()
    try:
        assert not link.resumed.wait(0.1)
        place.make()
        assert not link.resumed.wait(0.2), "it was made, not touched"
        os.utime(place.touch, (1e9, 1e9))
        assert link.resumed.wait(10)
        assert link.asked[0] == ("resume_job", "lab", "session lab: touched by its owner")
    finally:
        watch.stop()
