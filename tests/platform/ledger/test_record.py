"""Damaged files: what is read was written, and only LedgerError is ever raised."""

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import LedgerCorrupt, LedgerError, RecordRefused
from ebbtide.ledger.reader import epoch_path, replay
from ebbtide.ledger.record import JSON, encode_payload, frame, scan
from tests.examples import examples

PAYLOADS: list[dict[str, JSON]] = [{"n": n, "pad": "x" * (n * 37 % 200), "text": "Ünïcode \ud800"} for n in range(12)]
FILE = frame(1, 0, encode_payload({"type": "epoch_opened", "writer": "w", "counts": {}})) + b"".join(
    frame(1, n + 1, encode_payload(payload)) for n, payload in enumerate(PAYLOADS)
)
json_objects = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@given(payloads=st.lists(json_objects, max_size=5))
@settings(deadline=None, max_examples=examples(60))
def test_what_is_framed_is_read_back(payloads: list[dict[str, JSON]]) -> None:
    data = b"".join(frame(7, n, encode_payload(payload)) for n, payload in enumerate(payloads))
    found = list(scan(io.BytesIO(data), epoch=7, offset=0, seq=0, limit=None))
    assert [record.payload for record in found] == payloads
    assert [record.end for record in found][-1:] == ([len(data)] if payloads else [])


@given(
    cut=st.integers(0, len(FILE)),
    flips=st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 7)), max_size=4),
    extra=st.binary(max_size=100),
)
@settings(deadline=None, max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_yields_a_record_that_was_not_written(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]], extra: bytes
) -> None:
    data = bytearray(FILE)
    for place, bit in flips:
        data[place] ^= 1 << bit
    epoch_path(tmp_path, 1).write_bytes(bytes(data[:cut]) + extra)
    try:
        found = [record.payload for record in replay(tmp_path)]
    except LedgerError:
        return
    assert found == PAYLOADS[: len(found)]


@pytest.mark.proves("a record counts by its hash")
def test_a_flip_in_one_record_keeps_all_records_before_it(tmp_path: Path) -> None:
    place = FILE.index(b'"n":7')
    for at, byte in ((place, b"\x00"), (place + 4, b"8")):  # no JSON any more, and another number
        epoch_path(tmp_path, 1).write_bytes(FILE[:at] + byte + FILE[at + 1 :])
        assert [record.payload for record in replay(tmp_path)] == PAYLOADS[:7]


@pytest.mark.proves("a damaged record that must count is damage")
def test_damage_below_a_fixed_offset_is_an_error_and_not_a_shorter_past(tmp_path: Path) -> None:
    epoch_path(tmp_path, 1).write_bytes(FILE)
    EpochLog.open(tmp_path, writer="next").close()
    place = FILE.index(b'"n":7')
    epoch_path(tmp_path, 1).write_bytes(FILE[:place] + b"\x00" + FILE[place + 1 :])
    with pytest.raises(LedgerCorrupt, match=r"epoch-00000001\.log is damaged at offset \d+, but counts up to"):
        list(replay(tmp_path))
    epoch_path(tmp_path, 1).unlink()
    with pytest.raises(LedgerCorrupt):
        list(replay(tmp_path))


@pytest.mark.proves("a record counts by its epoch and number")
def test_a_record_of_another_epoch_or_place_does_not_count(tmp_path: Path) -> None:
    good = frame(1, 0, encode_payload({"type": "epoch_opened", "writer": "w", "counts": {}}))
    for stray in (frame(2, 1, b"{}"), frame(1, 2, b"{}"), frame(1, 0, b"{}"), frame(1, 1, b"[]"), frame(1, 1, b"{")):
        epoch_path(tmp_path, 1).write_bytes(good + stray)
        assert list(replay(tmp_path)) == []
    epoch_path(tmp_path, 1).write_bytes(good + frame(1, 1, b"{}"))
    assert len(list(replay(tmp_path))) == 1


@pytest.mark.proves("a record is JSON")
def test_payloads_that_are_no_json_objects_are_refused() -> None:
    bad: list[JSON] = [{"x": float("nan")}, {"x": float("inf")}, {"x": "y" * (17 << 20)}]
    for payload in bad:
        assert isinstance(payload, dict)
        with pytest.raises(RecordRefused):
            encode_payload(payload)
    with pytest.raises(RecordRefused):
        encode_payload({"x": object()})  # type: ignore[dict-item]
