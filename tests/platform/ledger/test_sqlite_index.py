"""The index answers from what counts, however often it is thrown away."""

import shutil
from pathlib import Path

import pytest

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.ledger.record import JSON
from ebbtide.ledger.record_subjects import subjects_of
from ebbtide.ledger.sqlite_index import IndexedRecord, LedgerIndex


def event(record_id: str, at_s: float, cause: str | None, **body: JSON) -> dict[str, JSON]:
    return {"type": "event", "id": record_id, "at_s": at_s, "cause": cause, "body": body}


EVENTS: list[dict[str, JSON]] = [
    event("1-1", 10.0, None, kind="job_submitted", spec={"name": "lm"}, incarnation="a"),
    event("1-2", 11.0, "1-1", kind="grant_job", job="lm", slots=["n0:0", "n0:1"], reason="slots are free"),
    {"type": "memory", "at_s": 11.0, "memory": {}},
    event("1-4", 12.0, "1-2", kind="park_job", job="lm", reason="traffic rises"),
    event("1-5", 13.0, "1-4", kind="grant_seat", seat="chat/0", slots=["n0:0"], reason="3 requests wait"),
    event("1-6", 14.0, None, kind="slot_found", slot={"id": "n0:2", "node": "n0"}),
]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    log = EpochLog.open(tmp_path / "ledger", writer="w")
    log.append(EVENTS).result(20)
    log.close()
    return log.directory


def ids(index: LedgerIndex, *, since_s: float = 0.0, limit: int = 100, subject: str | None = None) -> list[str]:
    return [one.id for one in index.events(since_s, limit=limit, subject=subject)]


def test_events_are_found_by_time_number_and_subject(ledger: Path, tmp_path: Path) -> None:
    with LedgerIndex(ledger, tmp_path / "local" / "i.sqlite") as index:
        assert ids(index) == []
        assert index.update() == 6
        assert index.update() == 0
        assert ids(index) == ["1-1", "1-2", "1-4", "1-5", "1-6"]
        assert ids(index, since_s=12.0) == ["1-4", "1-5", "1-6"]
        assert ids(index, limit=2) == ["1-5", "1-6"]
        assert ids(index, subject="n0:0") == ["1-2", "1-5"]
        assert ids(index, subject="lm", since_s=11.0, limit=1) == ["1-4"]
        assert ids(index, subject="chat") == ids(index, subject="chat/0") == ["1-5"]
        assert ids(index, subject="n0:2") == ["1-6"]
        assert ids(index, subject="nobody") == []
        assert [one.id for one in index.events(subject="lm", kinds=("grant_job", "park_job"))] == ["1-2", "1-4"]
        assert [one.id for one in index.events(kinds=("slot_found",), limit=5)] == ["1-6"]
        assert index.events(kinds=("slot_foun", "%", "")) == []
        assert [one.type for one in index.events(types=("memory",))] == ["memory"]
        assert [one.id for one in index.events(types=("memory",))] == ["1-3"]


@pytest.mark.proves("a chain of causes ends where one comes again")
def test_a_chain_follows_causes_to_their_root_and_ends_in_a_circle(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        index.update()
        assert [one.id for one in index.chain("1-5")] == ["1-5", "1-4", "1-2", "1-1"]
        assert index.chain("9-9") == []
        log = EpochLog.open(ledger, writer="w")
        log.append([event("2-1", 1.0, "2-2"), event("2-2", 1.0, "2-1"), event("2-3", 1.0, "gone")]).result(20)
        log.close()
        assert index.update() == 3
        look_up, asked = index.record, list[str]()

        def counted(record_id: str) -> IndexedRecord | None:
            asked.append(record_id)
            assert len(asked) < 9, "it goes in a circle"
            return look_up(record_id)

        monkeypatch.setattr(index, "record", counted)
        assert [one.id for one in index.chain("2-2")] == ["2-2", "2-1"]
        assert [one.id for one in index.chain("2-3")] == ["2-3"]


def test_a_damaged_lost_or_foreign_index_is_built_again(ledger: Path, tmp_path: Path) -> None:
    database = tmp_path / "i.sqlite"

    def built() -> list[str]:
        with LedgerIndex(ledger, database) as index:
            index.update()
            return ids(index)

    before = built()
    database.write_bytes(b"no database at all" * 1000)
    assert built() == before
    content = bytearray(database.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    database.write_bytes(content)
    assert built() == before
    database.unlink()
    assert built() == before
    with LedgerIndex(tmp_path / "another", database) as other:
        other.update()
        assert ids(other) == []
    assert built() == before


@pytest.mark.proves("a damaged index is built again")
def test_an_index_that_is_damaged_while_it_is_open_is_built_again(ledger: Path, tmp_path: Path) -> None:
    database = tmp_path / "i.sqlite"
    with LedgerIndex(ledger, database) as index:
        index.update()
        before = ids(index)
        database.write_bytes(b"no database at all" * 1000)
        index.update()
        assert ids(index) == before


@pytest.mark.proves("another ledger's index is not taken for this one's")
def test_another_ledger_in_the_same_place_is_not_taken_for_the_old_one(ledger: Path, tmp_path: Path) -> None:
    database = tmp_path / "i.sqlite"
    with LedgerIndex(ledger, database) as index:
        index.update()
    shutil.rmtree(ledger)
    log = EpochLog.open(ledger, writer="w")
    log.append([event("1-1", 20.0, None, kind="job_submitted", spec={"name": "other"}, incarnation="b")]).result(20)
    log.close()
    with LedgerIndex(ledger, database) as index:
        index.update()
        assert ids(index) == ["1-1"]
        assert ids(index, subject="other") == ["1-1"]


def test_an_index_in_an_impossible_place_is_refused(ledger: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerUnusable, match="cannot keep an index"):
        LedgerIndex(ledger, tmp_path / "file" / "i.sqlite")


def test_odd_payloads_are_indexed_and_not_refused(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path / "ledger", writer="w")
    odd: list[dict[str, JSON]] = [{"type": "event", "id": "\ud800", "at_s": "soon", "cause": 3, "body": [1]}, {}]
    odd.append({"type": "event", "body": {"job": "\udfff", "slots": "n0:1", "slot": {"id": 4}, "spec": {"name": 1}}})
    log.append(odd).result(20)
    log.close()
    with LedgerIndex(log.directory, tmp_path / "i.sqlite") as index:
        assert index.update() == 3


def test_subjects_are_taken_from_the_payload_and_its_body() -> None:
    assert subjects_of({"subject": "x", "body": {"seat": "chat/1", "endpoint": "chat", "slots": ["a:0"]}}) == {
        "x",
        "chat/1",
        "chat",
        "a:0",
    }
