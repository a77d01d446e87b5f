"""What a row carries, and how it is read back."""

import json
from pathlib import Path

import pytest

from evidence import stamps
from evidence.result_file import load
from evidence.stamps import Begun, Stamp, stamps_of, with_stamps

STAMP = Stamp("abc", "2 CPU cores", "2026-01-01 10:00", 61.5, ("arbiter", "gateway"), "0" * 16)


def test_stamps_are_read_as_they_were_written() -> None:
    document = json.loads(json.dumps(with_stamps({"rows": [1]}, {"a": STAMP})))
    assert stamps_of(document) == {"a": STAMP} and document["rows"] == [1]


def test_a_result_that_is_older_than_stamps_or_is_not_there_has_none(tmp_path: Path) -> None:
    assert stamps_of({"rows": []}) == stamps_of(None) == stamps_of(load("none", tmp_path)) == {}


def test_a_case_carries_the_code_as_it_was_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "digest_of", lambda processes: "before")
    monkeypatch.setattr(stamps, "commit", lambda: "one")
    begun = Begun.now(["gateway", "arbiter"])
    monkeypatch.setattr(stamps, "digest_of", lambda processes: "after")
    monkeypatch.setattr(stamps, "commit", lambda: "two")
    found = begun.ended()
    assert (found.digest, found.commit, found.processes) == ("before", "one-dirty", ("arbiter", "gateway"))
    assert found.seconds >= 0 and found.hardware
