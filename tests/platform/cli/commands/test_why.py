"""``ebbtide why``: what failed of a replaced revision is told as history, with its age."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ebbtide.cli.main import cli
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.record import JSON

ERROR = "it did not start: no such option"


def declared(revision: str, at_s: float, name: str = "chat") -> tuple[float, dict[str, JSON]]:
    return at_s, {"kind": "endpoint_declared", "spec": {"name": name, "revision": revision}}


def granted(at_s: float, seat: str = "chat/0") -> tuple[float, dict[str, JSON]]:
    return at_s, {"kind": "grant_seat", "seat": seat, "slots": ["n:0"], "reason": "a request waits"}


def failed(at_s: float, seat: str = "chat/0", kind: str = "seat_stopped") -> tuple[float, dict[str, JSON]]:
    return at_s, {"kind": kind, "seat": seat, "why": ERROR}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))


def why(tmp_path: Path, *events: tuple[float, dict[str, JSON]], subject: str = "chat") -> list[str]:
    """Its lines that tell of the failure."""
    now_s = time.time()
    log = EpochLog.open(tmp_path / "ledger", writer="w")
    records: list[dict[str, Any]] = [
        {"type": "event", "id": f"1.{number}", "at_s": now_s - ago_s, "cause": None, "body": body}
        for number, (ago_s, body) in enumerate(events)
    ]
    log.append(records).result(20)
    log.close()
    ran = CliRunner().invoke(cli, ["why", subject, "--shared-dir", str(tmp_path)], catch_exceptions=False)
    return [line for line in ran.stdout.splitlines() if ERROR in line]


def test_a_failure_of_the_revision_in_force_is_told_as_it_is(tmp_path: Path) -> None:
    (line,) = why(tmp_path, declared("a1", 400), granted(350), failed(300))
    assert line.endswith(ERROR)


@pytest.mark.parametrize("kind", ["seat_stopped", "seat_died"])
@pytest.mark.parametrize("subject", ["chat", "chat/0", "1.2"])
def test_a_failure_of_a_replaced_revision_is_history_with_its_age(tmp_path: Path, subject: str, kind: str) -> None:
    events = (declared("a1", 700), granted(650), failed(605, kind=kind), declared("b2", 300))
    (line,) = why(tmp_path, *events, subject=subject)
    assert line.endswith(f"{ERROR} [history: 10 min ago, of revision a1; b2 is in force]")
    said = CliRunner().invoke(cli, ["why", subject, "--shared-dir", str(tmp_path), "--json"]).stdout
    (event,) = [one for one in json.loads(said)["events"] if one["body"].get("why")]
    assert (event["replaced"]["revision"], event["replaced"]["by"]) == ("a1", "b2")
    assert event["replaced"]["at_s"] == pytest.approx(time.time() - 300, abs=30.0)


def test_a_replica_that_fails_after_its_revision_was_replaced_is_of_the_one_it_was_started_with(tmp_path: Path) -> None:
    (line,) = why(tmp_path, declared("a1", 700), granted(650), declared("b2", 300), failed(20))
    assert "of revision a1; b2 is in force" in line


def test_a_revision_put_back_into_force_and_one_declared_again_are_no_history(tmp_path: Path) -> None:
    back = (declared("a1", 700), granted(650), failed(600), declared("b2", 300), declared("a1", 200))
    (line,) = why(tmp_path, *back)
    assert line.endswith(ERROR)
    again = (declared("c", 90, "code"), granted(80, "code/1"), failed(70, "code/1"), declared("c", 60, "code"))
    (line,) = why(tmp_path, *again, subject="code")
    assert line.endswith(ERROR)


def test_another_endpoints_revision_says_nothing_of_it(tmp_path: Path) -> None:
    (line,) = why(tmp_path, declared("a1", 700), granted(650), failed(600), declared("b2", 300, "code"))
    assert line.endswith(ERROR)


def test_a_failure_whose_declaration_is_not_known_any_more_is_told_as_it_is(tmp_path: Path) -> None:
    (line,) = why(tmp_path, failed(600), declared("b2", 300))
    assert line.endswith(ERROR)
