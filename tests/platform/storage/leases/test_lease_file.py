"""The files of leases: names, records, and steps that any number of claimants take at once."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.errors import Refused, TransferFailed
from ebbtide.storage.files.file_operations import (
    RECORD_BYTES,
    CreateFile,
    ListNames,
    Operation,
    Overwrite,
    Steps,
    carry_out,
)
from ebbtide.storage.files.shared_files import perform
from ebbtide.storage.leases import lease_file
from ebbtide.storage.leases.lease_file import KEPT_NUMBERS, LeaseFile, Pace, Record, checked_name, current
from tests.platform.storage.shared_model import Directory

NAMES = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.+=,@%-]{0,180}\Z")
RECORD = Record("t" * 32, "node 1", stale_after_s=60.0)


@given(NAMES, st.one_of(st.integers(1, 999_999_999), st.uuids()))
def test_a_file_name_says_what_it_was_made_of(name: str, what: Any) -> None:
    file = LeaseFile(name, what) if isinstance(what, int) else LeaseFile(name, token=what.hex)
    assert LeaseFile.parse(str(file)) == file
    assert len(str(file)) < 255


@pytest.mark.parametrize(
    "text", ["", "x", "~000000001", "x~1", "x~" + "g" * 32, ".nfs0001", "a/b~000000001", "x~0000000001"]
)
def test_other_files_are_none_of_ours(text: str) -> None:
    assert LeaseFile.parse(text) is None


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a~b", "ä", "a\n", "x" * 182, "a b"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="cannot name a lease"):
        checked_name(name)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 2**62), st.text(max_size=300))


@given(who=st.text(max_size=300), note=st.dictionaries(st.sampled_from("abcdef"), SCALARS), released=st.booleans())
def test_a_record_always_fits_and_comes_back(who: str, note: dict[str, Any], released: bool) -> None:
    record = Record("t" * 32, who, 60.0, 7, released, note)
    data = record.encode()
    assert len(data) == RECORD_BYTES
    back = Record.decode(data)
    assert back is not None
    assert (back.token, back.who, back.beat, back.released) == (record.token, who[:100], 7, released)
    assert back.note.keys() == note.keys()
    if len(json.dumps(note)) + 12 * len(who) < 1500:
        assert back.note == note


@pytest.mark.parametrize("sign", ["x", "ä", "\0", "\U0001f600"])
def test_texts_that_are_too_long_are_cut_and_the_rest_stays(sign: str) -> None:
    note: dict[str, Any] = {"error": sign * 5000, "outcome": "failed", "failures": 3}
    data = Record("t" * 32, sign * 5000, 60.0, note=note).encode()
    assert len(data) == RECORD_BYTES
    back = Record.decode(data)
    assert back is not None and back.who == sign * 100
    assert back.note["outcome"] == "failed" and back.note["failures"] == 3
    error = back.note["error"]
    assert isinstance(error, str) and set(error) == {sign}


@given(st.binary(max_size=RECORD_BYTES))
def test_any_other_bytes_are_no_record(data: bytes) -> None:
    assert Record.decode(data) is None


@pytest.mark.parametrize(
    "found",
    [
        [],
        {},
        {"token": "t"},
        {"token": "t", "who": "w", "stale_after_s": "soon", "beat": 1, "released": False, "note": {}},
        {"token": "t", "who": "w", "stale_after_s": 1, "beat": 1e400, "released": False, "note": {}},
        {"token": "t", "who": "w", "stale_after_s": 1, "beat": 1, "released": False, "note": {"a": [1]}},
        {"token": "t", "who": "w", "stale_after_s": 1, "beat": 1, "released": False, "note": []},
    ],
)
def test_a_damaged_record_is_none(found: Any) -> None:
    assert Record.decode(json.dumps(found).encode()) is None
    assert Record.decode(b"[" * RECORD_BYTES) is None


@pytest.mark.parametrize(("asked", "given_s"), [(1e9, 3600.0), (-5, 0.0)])
def test_a_file_cannot_ask_for_any_patience(asked: float, given_s: float) -> None:
    found = {"token": "t", "who": "w", "stale_after_s": asked, "beat": 1, "released": False, "note": {}}
    record = Record.decode(json.dumps(found).encode())
    assert record is not None and record.stale_after_s == given_s


@pytest.mark.parametrize(("beat_s", "stale_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 5.9), (1.0, 4000.0)])
def test_a_pace_at_which_a_living_holder_would_die_is_refused(beat_s: float, stale_s: float) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Pace(beat_s, stale_s)


def test_all_shared_files_count_and_of_each_exclusive_name_the_newest() -> None:
    a, b = LeaseFile("x", token="a" * 32), LeaseFile("x", token="b" * 32)
    files = [a, b, LeaseFile("x", 2), LeaseFile("x", 11), LeaseFile("y", 1)]
    for order in permutations(files):
        assert current(order) == sorted([a, b, LeaseFile("x", 11), LeaseFile("y", 1)])


def run(steps: Steps[Any], directory: Directory, node: int = 0) -> Any:
    return carry_out(steps, lambda operation: directory.perform(node, operation, 0.0))


HERE = Path("/shared")


def test_exactly_one_of_two_claimants_succeeds_however_their_steps_mix() -> None:
    for order in set(permutations("AAAABBBB")):
        directory = Directory()
        steps = {who: lease_file.create(HERE, LeaseFile("x", 1), Record(who * 32, who, 60.0)) for who in "AB"}
        answers: dict[str, Any] = dict.fromkeys("AB")
        ended: dict[str, str] = {}
        for who in [*order, *"AAAABBBB"]:
            if who not in ended:
                try:
                    operation = steps[who].send(answers[who])
                    answers[who] = directory.perform(ord(who), operation, 0.0)
                except StopIteration as end:
                    ended[who] = end.value
        assert sorted(ended.values()) == ["", "x~000000001 exists: somebody else was first"]


def test_a_claim_that_comes_late_finds_that_others_have_gone_on_and_leaves_nothing() -> None:
    directory = Directory()
    assert run(lease_file.create(HERE, LeaseFile("x", 9), RECORD), directory) == ""
    assert "number 9" in run(lease_file.create(HERE, LeaseFile("x", 4), RECORD), directory)
    assert directory.names() == {"x~000000009"}


def test_numbers_are_not_used_again_while_a_listing_may_be_old() -> None:
    assert KEPT_NUMBERS >= 16, "so many turns of work may pass in the 60 s for which NFS caches a listing"
    directory = Directory()
    for number in range(1, 40):
        assert run(lease_file.create(HERE, LeaseFile("x", number), RECORD), directory) == ""
    kept = {f"x~{number:09d}" for number in range(40 - KEPT_NUMBERS, 40)}
    assert directory.names() == kept

    def old_listing(operation: Operation) -> Any:
        return frozenset() if isinstance(operation, ListNames) else directory.perform(1, operation, 0.0)

    for number in range(40 - KEPT_NUMBERS, 40):
        assert "somebody else was first" in carry_out(
            lease_file.create(HERE, LeaseFile("x", number), RECORD), old_listing
        )


def test_a_shared_file_is_not_disturbed_by_numbers_of_its_name() -> None:
    directory = Directory()
    shared = LeaseFile("x", token="a" * 32)
    assert run(lease_file.create(HERE, shared, RECORD), directory) == ""
    assert run(lease_file.create(HERE, LeaseFile("x", 1), RECORD), directory) == ""
    assert run(lease_file.beat(HERE, shared, RECORD), directory) == ""
    run(lease_file.release(HERE, shared, RECORD), directory)
    assert directory.names() == {"x~000000001"}


def test_a_beat_finds_out_that_its_file_has_gone_is_anothers_or_was_overtaken() -> None:
    directory, file = Directory(), LeaseFile("x", 1)
    assert "gone or somebody else's" in run(lease_file.beat(HERE, file, RECORD), directory)
    run(lease_file.create(HERE, file, Record("other" * 6, "w", 60.0)), directory)
    assert "gone or somebody else's" in run(lease_file.beat(HERE, file, RECORD), directory)
    file = LeaseFile("y", 1)
    run(lease_file.create(HERE, file, RECORD), directory)
    assert run(lease_file.beat(HERE, file, RECORD), directory) == ""
    run(lease_file.create(HERE, LeaseFile("y", 2), Record("other" * 6, "w", 60.0)), directory)
    assert "somebody else took over" in run(lease_file.beat(HERE, file, RECORD), directory)


def test_a_name_says_that_it_was_released_and_its_number_stays_taken() -> None:
    directory, file = Directory(), LeaseFile("x", 1)
    run(lease_file.create(HERE, file, RECORD), directory)
    run(lease_file.release(HERE, file, RECORD), directory)
    record = Record.decode(directory.content(HERE / str(file)) or b"")
    assert record is not None and record.released
    assert run(lease_file.create(HERE, file, RECORD), directory) != ""


def test_a_number_that_is_known_is_there_though_neither_listing_nor_content_show_it() -> None:
    directory = Directory()
    assert run(lease_file.look(HERE, "x", at_least=3), directory) == {LeaseFile("x", 3): b""}
    run(lease_file.create(HERE, LeaseFile("x", 5), RECORD), directory)
    assert set(run(lease_file.look(HERE, "x", at_least=3), directory)) == {LeaseFile("x", 5)}
    run(lease_file.create(HERE, LeaseFile("y", 1), RECORD), directory)
    assert set(run(lease_file.look(HERE), directory)) == {LeaseFile("x", 5), LeaseFile("y", 1)}


def test_an_error_of_the_filesystem_comes_out_of_the_steps(tmp_path: Path) -> None:
    def fail(operation: Operation) -> Any:
        if isinstance(operation, Overwrite):
            raise TransferFailed("write", operation.path, errno=30)
        return perform(operation)

    file = LeaseFile("x", 1)
    assert carry_out(lease_file.create(tmp_path, file, RECORD), fail) == ""
    with pytest.raises(TransferFailed, match="Read-only"):
        carry_out(lease_file.beat(tmp_path, file, RECORD), fail)
    assert (tmp_path / str(file)).read_bytes() == RECORD.encode()
    assert perform(CreateFile(tmp_path / str(file), b"")) is False
