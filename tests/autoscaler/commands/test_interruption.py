"""Ctrl-C, a signal and a "no": one sentence that says what is left, exit code 1, and never a bare "Aborted!"."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ebbtide.cli.main import cli
from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide.cli.terminal.interruption import interruptible
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.system.interrupts import Terminated
from ebbtide_autoscaler.cluster.node_names import Node
from ebbtide_autoscaler.commands import calls, hold, operate
from ebbtide_autoscaler.commands import pool as module
from ebbtide_autoscaler.lifecycle import down as take_down
from ebbtide_autoscaler.lifecycle import up as bring_up
from ebbtide_autoscaler.lifecycle.job_drain import WORD_S
from ebbtide_autoscaler.lifecycle.pool_presence import PoolPresence
from tests.builders.commands import FakeLink, M, N

POOL = f"cut{os.getpid()}"
RECORD = ClusterRecord(POOL, "127.0.0.1:9", "http://gateway", "", "/s", "/f/pool.yaml")


def interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    path = tmp_path / "pool.yaml"
    path.write_text(f"pool: {{name: {POOL}, slots: 1, shared_dir: shared}}\n")
    monkeypatch.setattr(module, "pending_changes", lambda *_: ())
    monkeypatch.setattr(module, "_has_another", lambda: False)
    monkeypatch.setattr(bring_up, "up", lambda *_, say: RECORD)
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def failing(found: Result, says: str) -> None:
    assert found.exit_code == 1 and found.stderr.splitlines()[-1] == f"Error: interrupted: {says}", found.output
    assert "Aborted" not in found.output


def test_before_anything_began(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_pool_file", interrupt)
    failing(run("up", str(file)), "nothing was changed")


def test_while_it_comes_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "look_for", lambda _: PoolPresence("none", None))
    monkeypatch.setattr(bring_up, "up", interrupt)
    failing(run("up", str(file)), "the pool is not up, and nothing that was started is left running")


def test_while_a_pool_that_is_up_takes_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "look_for", lambda _: PoolPresence("up", RECORD))
    monkeypatch.setattr(module, "ArbiterLink", lambda: SimpleNamespace(call=lambda *_, **__: None))
    monkeypatch.setattr(bring_up, "up", interrupt)
    path = file.resolve()
    failing(
        run("up", str(file)),
        f"what ran before goes on, with the old file or with this one; `ebbtide up {path}` again finishes it",
    )


def test_while_replicas_start(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "look_for", lambda _: PoolPresence("none", None))
    monkeypatch.setattr(module, "settle", interrupt)
    failing(run("up", str(file)), "the pool is up with this file, and goes on by itself; see `ebbtide status`")
    monkeypatch.setattr(module, "settle", lambda *_, **__: {})
    assert run("up", str(file)).exit_code == 0


def test_with_json_it_is_an_error_object(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "look_for", lambda _: PoolPresence("none", None))
    monkeypatch.setattr(bring_up, "up", interrupt)
    found = run("up", str(file), "--json")
    told = json.loads(found.stderr.splitlines()[-1])
    assert (found.exit_code, found.stdout, told["error"]["class"]) == (1, "", "failed")


@pytest.mark.parametrize("how", [KeyboardInterrupt, lambda: Terminated(signal.SIGTERM)])
def test_each_way_to_be_interrupted(how: Callable[[], BaseException]) -> None:
    with pytest.raises(CommandFailed, match=r"^interrupted: as it was$"), interruptible("as it was"):
        raise how()


def test_a_no_changes_nothing_and_is_no_interruption() -> None:
    with pytest.raises(CommandFailed, match=r"^nothing was changed$"), interruptible("nothing was changed"):
        raise click.Abort
    with pytest.raises(OSError, match="of its own"), interruptible("x"):
        raise OSError("of its own")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("drain", M[:8]), f"node {M[:8]} (crate) goes on draining; `ebbtide undrain {M[:8]}` takes that back"),
        (("cancel", "train"), "job train is cancelled all the same, at its next safe point"),
        (("park", "train"), "job train steps aside all the same; `ebbtide resume train` takes that back"),
        (("resume", "train"), "job train goes on all the same, when it gets its slots; see `ebbtide status`"),
    ],
)
def test_who_stops_waiting_hears_that_what_was_asked_for_still_holds(
    command: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FakeLink()
    monkeypatch.setattr(calls, "ArbiterLink", lambda: link)
    for one in (hold, operate):
        monkeypatch.setattr(one, "join_pool", lambda pool: RECORD)
        monkeypatch.setattr(one, "until_done", interrupt)
    monkeypatch.setattr(operate, "cluster_nodes", lambda: (Node(N, "box"), Node(M, "crate")))
    failing(run(*command), says)
    assert len(link.asked) == 1


class Arbiter:
    """One with a job that does not come to a safe point."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.interrupts = False  # at its second look

    def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
        if self.interrupts and len(self.asked) == 2:
            self.interrupts = False
            raise KeyboardInterrupt
        self.asked.append((method, *args))
        job = {"job": "lm", "state": "running", "step": 7, "durable_step": 3, "grace_s": 30.0, "restorable": True}
        return {"arbiter": {"frozen": ""}, "jobs": [job]} if method == "status" else {"changed": True}


@pytest.fixture
def arbiter(file: Path, monkeypatch: pytest.MonkeyPatch) -> Arbiter:
    """Of a pool that is up, on a cluster of which nothing is real."""
    found = Arbiter()
    save_cluster(RECORD)
    monkeypatch.setattr(module, "ArbiterLink", lambda: found)
    monkeypatch.setattr(module, "user", lambda: "ann")
    monkeypatch.setattr(take_down, "join", lambda _: None)
    monkeypatch.setattr(take_down, "_leave", lambda say: say("left"))
    return found


def test_down_while_it_waits_for_a_job_leaves_the_pool_up(arbiter: Arbiter) -> None:
    arbiter.interrupts = True
    found = run("down", "--pool", POOL)
    assert found.exit_code == 1 and "the pool is still up and its jobs go on" in found.stderr
    assert arbiter.asked[-1] == ("reopen_pool",) and "left" not in found.stderr.splitlines()


def test_down_half_way_says_how_to_go_on(arbiter: Arbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_down, "_leave", interrupt)
    failing(run("down", "--now"), "the pool is half down; `ebbtide down` again ends the rest")
    assert arbiter.asked == []


def test_down_with_its_grace_over_says_what_is_repeated_and_how_to_go_on(arbiter: Arbiter) -> None:
    found = run("down", "--grace", "0", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == {"pool": POOL, "down": True, "already": False}
    assert arbiter.asked == [("close_pool", "ann", WORD_S), ("status",)]
    first, *_, last = found.stderr.splitlines()
    assert first.endswith("job lm is ended with the pool: it goes on from step 3, and repeats 4 steps at least")
    assert last == "`ebbtide up /f/pool.yaml` lets go on: lm from step 3"
    assert json.loads(run("down", "--pool", POOL, "--json").stdout)["already"], "twice is no error"


def test_down_now_asks_no_job(arbiter: Arbiter) -> None:
    assert run("down", "--now").exit_code == 0 and arbiter.asked == []


@pytest.mark.parametrize("words", [("--grace", "-1"), ("--grace", "soon"), ("--now", "--grace", "5")])
def test_wrong_words_change_nothing(words: tuple[str, ...], arbiter: Arbiter) -> None:
    found = run("down", *words)
    assert found.exit_code == 2 and arbiter.asked == []
    assert run("down", "--now").exit_code == 0, "it is still there"
