"""Measured rates on disk: what was written is read again, and nothing else is believed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.snapshot.rates_file import FILE_NAME, RatesUnusable, read_rates, write_rates
from ebbtide.snapshot.tiers import Lane, Rate, Rates

FAST = Rate(2e9, "rehearsed", measured=True)


def test_without_a_file_nothing_was_measured(tmp_path: Path) -> None:
    assert read_rates(tmp_path) == Rates()
    assert not Rates().of(Lane.MEMCPY_OUT).measured


def test_what_is_written_is_used_and_the_rest_stays(tmp_path: Path) -> None:
    path = write_rates(tmp_path / "new", {Lane.MEMCPY_OUT: FAST})
    write_rates(tmp_path / "new", {Lane.CRIU_OUT: FAST})
    assert read_rates(tmp_path / "new").measured == {Lane.MEMCPY_OUT: FAST, Lane.CRIU_OUT: FAST}
    assert [entry.name for entry in path.parent.iterdir()] == [FILE_NAME]
    assert path.stat().st_mode & 0o777 == 0o600


GOOD = {"version": 1, "rates": {"memcpy_out": {"bytes_per_s": 2e9, "origin": "x"}}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "null",
        '{"version": 1}',
        json.dumps({**GOOD, "version": 2}),
        json.dumps(GOOD).replace("memcpy_out", "by_pigeon"),
        *(
            json.dumps(GOOD).replace("2000000000.0", bad)
            for bad in ("0", "-1", "NaN", "Infinity", "1e300", "true", '"9"', "1")
        ),
        json.dumps(GOOD).replace('"x"', '""'),
        json.dumps(GOOD).replace('"x"', "7"),
        '{"version": 1, "rates": {"memcpy_out": 5}}',
        " " * (1 << 17),
        "[" * 60_000,
    ],
    ids=lambda text: repr(text[:40]),
)
def test_what_cannot_be_is_refused_as_a_whole_and_can_be_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(RatesUnusable, match="remove it, or measure again"):
        read_rates(tmp_path)
    write_rates(tmp_path, {Lane.MEMCPY_OUT: FAST})
    assert read_rates(tmp_path).measured == {Lane.MEMCPY_OUT: FAST}


@given(st.binary(max_size=200))
def test_no_bytes_break_it(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.mktemp("rates")
    (folder / FILE_NAME).write_bytes(raw)
    with pytest.raises(RatesUnusable):
        read_rates(folder)


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rates(tmp_path, {Lane.MEMCPY_OUT: FAST})

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ebbtide.snapshot.rates_file.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_rates(tmp_path, {Lane.MEMCPY_OUT: Rate(1e9, "later", measured=True)})
    assert read_rates(tmp_path).measured == {Lane.MEMCPY_OUT: FAST}
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]
