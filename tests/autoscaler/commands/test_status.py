"""What a person reads while the pool stands still: the words of ``ebbtide status``, also where nobody answers."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ebbtide.client.cluster_join import ClusterUnreachable
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.pool.events import Body, Event, JobSubmitted, NodeFound
from ebbtide.pool.ids import NodeId, RecordId
from ebbtide_autoscaler.commands import status_source
from ebbtide_autoscaler.commands.status_source import look
from ebbtide_autoscaler.commands.status_tables import render
from ebbtide_autoscaler.journal import records
from ebbtide_autoscaler.journal.records import Journal, Recovered
from tests.autoscaler.closed_loop import a_job


def read(found: dict[str, Any]) -> str:
    """The screen, with every run of blanks as one."""
    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - only what it records counts
    console.print(render(found))
    return " ".join(console.export_text().split())


def stands(by: str, why: str) -> dict[str, Any]:
    return {"pool": "p", "arbiter": {"epoch": 3, "frozen": why, "frozen_by": by, "frozen_since_at_s": time.time() - 65}}


@pytest.mark.parametrize(
    ("by", "who"), [("ledger", "the ledger"), ("promise", "a promise"), ("person", "a person"), ("start", "a start")]
)
def test_a_standstill_is_shown_with_who_since_when_and_why(by: str, who: str) -> None:
    found = read(stands(by, "/shared has not answered for 65 s"))
    assert re.search(rf"frozen by {who} since \d\d:\d\d:\d\d \([67]\d s\): /shared has not answered for 65 s", found), (
        found
    )


def test_a_pool_that_moves_says_nothing_of_a_standstill() -> None:
    assert "frozen" not in read({"pool": "p", "arbiter": {"epoch": 3, "frozen": "", "frozen_by": ""}})


def test_stopped_signals_are_shown_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "signals stopped: every gateway is silent"
    found = stands("", "") | {"notices": [{"about": "gateway", "name": "", "since_at_s": time.time() - 9, "why": why}]}
    assert re.search(rf"gateway since \d\d:\d\d:\d\d \((9|1\d) s\): {why}", read(found))


class NoArbiter:
    """An arbiter that does not answer."""

    def call(self, *_: object, **__: object) -> None:
        """No answer."""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterRecord:
    """Of a pool whose ledger has one job, and whose arbiter is away."""
    journal = Journal(EpochLog.open(tmp_path / "ledger", writer="w"), Recovered())
    bodies: tuple[Body, ...] = (NodeFound(NodeId("n"), 0), JobSubmitted(a_job(), "i"))
    journal.write([Event(RecordId(f"1.{n}"), time.time(), None, body) for n, body in enumerate(bodies)]).result(20)
    journal.close()
    monkeypatch.setattr(status_source, "join", lambda record: None)
    monkeypatch.setattr(status_source, "ArbiterLink", NoArbiter)
    monkeypatch.setattr(status_source, "runtime_dir", lambda pool: tmp_path)
    fields: dict[str, Any] = dict.fromkeys(ClusterRecord.__dataclass_fields__, "")
    return ClusterRecord(**fields | {"pool": "p", "shared_dir": str(tmp_path), "config_file": "pool.yaml"})


def test_without_an_arbiter_the_ledger_tells_what_was_so_last(record: ClusterRecord) -> None:
    found = read(look(record))
    assert "the arbiter does not answer" in found and "everything that runs goes on, nothing moves" in found
    assert "train waiting" in found


def test_a_lost_cluster_is_told_with_the_way_back(record: ClusterRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_record: ClusterRecord) -> None:
        raise ClusterUnreachable("nobody answers at 127.0.0.1:6379")

    monkeypatch.setattr(status_source, "join", fails)
    found = read(look(record))
    assert "nobody answers at 127.0.0.1:6379; if the cluster is lost, `ebbtide up pool.yaml` restores it" in found


def test_a_shared_directory_that_hangs_too_hangs_nobody(record: ClusterRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(_path: Path) -> None:
        time.sleep(3)
        raise OSError("it gives up in the end, and nobody listens any more")

    monkeypatch.setattr(records, "recover", hangs)
    monkeypatch.setattr(status_source, "LEDGER_S", 0.2)
    began_s = time.monotonic()
    assert "does not answer within 0.2 s" in read(look(record))
    assert time.monotonic() - began_s < 2.5
