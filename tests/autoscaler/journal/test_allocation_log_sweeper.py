"""The arbiter has old allocation logs removed, and only when it knows who may still write one."""

import logging
import os
from pathlib import Path

import pytest

from ebbtide.agent.slot_locks import allocation_log_retention
from ebbtide.agent.slot_locks.allocation_log_retention import KEPT_S, Writer
from ebbtide.agent.slot_locks.lock_content import UNKNOWN_HOLDER
from ebbtide.client.messages import AgentReport, LockHolder
from ebbtide.pool.ids import NodeId
from ebbtide_autoscaler.commands.log_targets import occupants
from ebbtide_autoscaler.core.observe.observation import Timestamped
from ebbtide_autoscaler.journal.allocation_log_sweeper import FRESH_S, _sweep_once, holders

A, B, DEAD = NodeId("aaaaaaaa11"), NodeId("bbbbbbbb22"), "dddddddd"
HELD = LockHolder("train", 3, 17, 100, 0)
NOW_S = 1000.0


def writer(node: str, index: int, pid: int) -> Writer:
    return Writer(node[:8], index, pid, 100)


def test_who_may_have_a_slot_is_what_the_agents_prove() -> None:
    report = AgentReport(A, "boot", {0: HELD, 1: None, 2: UNKNOWN_HOLDER}, 0.0)
    may_hold = holders({A, B}, {A: Timestamped(NOW_S, report)}, NOW_S)
    assert may_hold(writer(A, 0, 17)) and not may_hold(writer(A, 0, 18))
    assert not may_hold(writer(A, 1, 17))
    assert may_hold(writer(A, 2, 18)), "somebody holds it and has not said who"
    assert may_hold(writer(A, 3, 18)), "not reported is not proven free"
    assert may_hold(writer(B, 0, 18)), "its agent has not been heard yet"
    assert not may_hold(writer(DEAD, 0, 17)), "nobody lives on a node that is gone"


def test_an_agent_that_fell_silent_proves_nothing_any_more() -> None:
    report = AgentReport(A, "boot", {0: None}, 0.0)
    for nodes in ({A}, set[NodeId]()):
        assert holders(nodes, {A: Timestamped(NOW_S - FRESH_S, report)}, NOW_S)(writer(A, 0, 17))


def test_nothing_is_removed_while_it_is_not_known_who_holds_and_a_refusal_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(allocation_log_retention, "KEPT_FILES", 0)
    path = tmp_path / "aaaaaaaa-17-100-0.jsonl"
    path.write_text("{}\n")
    os.utime(path, (0, 0))
    _sweep_once(tmp_path, None)
    _sweep_once(tmp_path, lambda _: True)
    assert path.exists()
    _sweep_once(path, lambda _: False)
    assert "cannot be listed: Not a directory" in caplog.text
    with caplog.at_level(logging.INFO):
        _sweep_once(tmp_path, lambda _: False)
    assert not path.exists() and "removed 1 old allocation log" in caplog.text
    assert KEPT_S > 0


def test_a_log_that_goes_while_they_are_sorted_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "occupancy"
    folder.mkdir()
    (folder / "n-7-1-0.jsonl").write_text('{"workload": "train", "slot": "n:0", "pid": 7}\n')
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [path / "gone.jsonl", *real(path, pattern)])
    assert occupants(tmp_path, "train") == [("n", 7)]
