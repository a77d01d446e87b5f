"""What commands of the command line are given, and what they print."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from ebbtide.cli.main import cli
from tests.platform.storage.models.made import make_checkpoint


def models(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["models", *map(str, arguments)])


class Shared:
    """A shared directory, and a model beside it."""

    def __init__(self, folder: Path) -> None:
        self.dir, self.source = folder / "shared", folder / "Tiny-1"
        self.dir.mkdir()
        self.arrays = make_checkpoint(self.source)
        self.option = ("--shared-dir", str(self.dir))
        self.store = self.dir / "store"

    def bring(self, *more: object) -> dict[str, object]:
        done = models("import", self.source, *more, *self.option, "--json")
        assert done.exit_code == 0, done.output
        found: dict[str, object] = json.loads(done.stdout)
        return found


N, M = "0123456789abcdef", "fedcba9876543210"


def a_status(state: str = "running", occupant: str | None = "train", nodes: tuple[str, ...] = (N, M)) -> dict[str, Any]:
    slot = {"slot": f"{N}:0", "node": N, "index": 0, "state": "leased", "occupant": occupant, "parked": []}
    job = {"job": "train", "state": state, "step": 9, "durable_step": 9, "outcome": "cancelled: by me"}
    return {
        "arbiter": {"frozen": "", "mode": "manage"},
        "nodes": [{"node": name} for name in nodes],
        "slots": [slot],
        "endpoints": [],
        "jobs": [job],
    }


def a_row(state: str = "running", **changes: Any) -> dict[str, Any]:
    """A job of the status."""
    row = {"job": "train", "state": state, "step": 9, "durable_step": 4, "grace_s": 30.0, "crashes": 0}
    return {**row, "interactive": False, "park_refused": None, "commit_error": None, "restorable": True, **changes}


class FakeLink:
    """An arbiter that answers from a list of states, the last one for ever, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.states: list[dict[str, Any] | None] = [a_status()]
        self.refusal = ""
        self.dead = False

    def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
        if self.dead:
            return None
        if method == "hello":
            return "here"
        if method == "status":
            return self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if self.refusal:
            raise ValueError(self.refusal)
        self.asked.append((method, *args))
        return None


def no_sleep(until_done: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: until_done(*args, **named, sleep=lambda seconds: None)


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))
