"""Who is asked for the status: the record on this machine, the arbiter when that is old, else the ledger."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_autoscaler.commands import status as command_status
from ebbtide_autoscaler.commands import status_source, status_watch
from ebbtide_autoscaler.commands.status_source import age_words, glance, look
from ebbtide_autoscaler.journal.status_record import record_file, subject_of, write_record

RECORD = ClusterRecord("p", "127.0.0.1:6379", "", "http://gateway", "/shared", "pool.yaml")
LeaveRecord = Callable[..., None]


class Arbiter:
    """Answers, and counts how often it was asked."""

    asked = 0

    def call(self, method: str, **_: object) -> dict[str, Any]:
        assert method == "status"
        Arbiter.asked += 1
        return {"pool": "p", "arbiter": {"epoch": 9}}


@pytest.fixture
def leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeaveRecord:
    """Leaves a record of that age; until then there is none, and the arbiter answers."""
    Arbiter.asked = 0
    monkeypatch.setattr(status_source, "runtime_dir", lambda pool: tmp_path)
    monkeypatch.setattr(status_source, "join", lambda record: None)
    monkeypatch.setattr(status_source, "ArbiterLink", Arbiter)

    def write(ago_s: float, record: ClusterRecord = RECORD) -> None:
        since_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s
        subject = subject_of(record.pool, record.shared_dir, record.address)
        write_record(tmp_path, subject, {"pool": "p", "arbiter": {"epoch": 3, "frozen": ""}}, since_boot_s=since_s)

    return write


def test_a_fresh_record_answers_and_its_age_is_shown(leave: LeaveRecord) -> None:
    leave(0.5)
    found = look(RECORD)
    assert (found["arbiter"]["epoch"], found["gateway"], Arbiter.asked) == (3, "http://gateway", 0)
    assert found["source"]["kind"] == "record" and 0.5 <= found["source"]["age_s"] < 1.5
    assert age_words(found).startswith("as the arbiter left it on this machine ")


def test_an_old_record_has_the_arbiter_asked(leave: LeaveRecord) -> None:
    leave(2.5)
    found = look(RECORD)
    assert (found["arbiter"]["epoch"], found["source"], Arbiter.asked) == (9, {"kind": "arbiter", "age_s": 0.0}, 1)
    assert age_words(found) == ""


def test_without_a_record_the_arbiter_is_asked(leave: LeaveRecord) -> None:
    assert glance(RECORD) is None
    assert look(RECORD)["source"]["kind"] == "arbiter" and Arbiter.asked == 1


@pytest.mark.parametrize("raw", [b"", b'{"format": 1, "po', b"[]"])
def test_half_a_record_has_the_arbiter_asked(leave: LeaveRecord, tmp_path: Path, raw: bytes) -> None:
    record_file(tmp_path).write_bytes(raw)
    assert look(RECORD)["source"]["kind"] == "arbiter"


def test_a_record_of_a_former_cluster_has_the_arbiter_asked(leave: LeaveRecord) -> None:
    leave(0.1, ClusterRecord("p", "127.0.0.1:7000", "", "", "/shared", "pool.yaml"))
    assert look(RECORD)["source"]["kind"] == "arbiter"


class Enough(Exception):
    """Ends a watch."""


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """`ebbtide status --watch` on a terminal, up to its first look, which never comes back."""

    def hangs(_record: ClusterRecord) -> dict[str, Any]:
        raise Enough

    monkeypatch.setattr(command_status, "look", hangs)
    monkeypatch.setattr(command_status, "the_pool", lambda _name: RECORD)
    monkeypatch.setattr(status_watch, "is_terminal", lambda: True)

    def until_it_looks() -> None:
        shown: Any = command_status.status.callback
        with pytest.raises(Enough):
            shown(None, True, False, False)

    return until_it_looks


def test_a_watch_shows_what_lies_here_before_it_asks_the_arbiter(
    leave: LeaveRecord, watch: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    leave(30.0)
    watch()
    shown = capsys.readouterr().out
    assert "arbiter epoch 3" in shown and "left it on this machine 30." in shown


def test_a_watch_without_a_record_says_that_the_arbiter_is_asked(
    leave: LeaveRecord, watch: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    watch()
    assert "pool p: its arbiter is asked, at 127.0.0.1:6379" in capsys.readouterr().out
