"""A journal is believed only where a record is whole, and only for the same file."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.integrity.chunk_index import ChunkHashes
from ebbtide.storage.models.importer.chunk_journal import _RECORD, _TITLE_BYTES, Journal, journal_path, read_journal
from tests.examples import examples


def hashes(number: int) -> ChunkHashes:
    return ChunkHashes(number * 3, number * 5, bytes([number % 251]) * 32)


def written(path: Path, numbers: list[int], title: str = "t") -> None:
    with Journal(path, title) as journal:
        for number in numbers:
            journal.claim(number, hashes(number))


def test_what_was_claimed_is_found_again_also_in_several_goes(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "model.safetensors")
    assert path.name == ".model.safetensors.chunks" and read_journal(path, "t") == {}
    written(path, [3, 1])
    written(path, [7, 1])
    assert read_journal(path, "t") == {number: hashes(number) for number in (1, 3, 7)}


def test_the_last_word_on_a_chunk_counts(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", "t") as journal:
        journal.claim(1, hashes(9))
        journal.claim(1, hashes(1))
    assert read_journal(tmp_path / "j", "t") == {1: hashes(1)}


def test_a_journal_of_another_layout_is_not_believed_and_begun_anew(tmp_path: Path) -> None:
    written(tmp_path / "j", [1, 2])
    assert read_journal(tmp_path / "j", "other") == {}
    written(tmp_path / "j", [5], title="other")
    assert read_journal(tmp_path / "j", "other") == {5: hashes(5)}
    assert read_journal(tmp_path / "j", "t") == {}


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_however_it_is_cut_off_what_is_whole_counts_and_later_records_are_found(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        written(path, list(range(5)))
        kept = data.draw(st.integers(0, path.stat().st_size))
        os.truncate(path, kept)
        whole = max(0, (kept - _TITLE_BYTES) // _RECORD.size) if kept >= _TITLE_BYTES else 0
        assert read_journal(path, "t") == {number: hashes(number) for number in range(whole)}
        written(path, [50, 51])
        assert read_journal(path, "t") == {number: hashes(number) for number in [*range(whole), 50, 51]}


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_a_flipped_bit_costs_at_most_its_record_and_makes_no_other(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        written(path, list(range(4)))
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, 8 * len(content) - 1))
        content[at // 8] ^= 1 << at % 8
        path.write_bytes(content)
        found = read_journal(path, "t")
        right = {number: hashes(number) for number in range(4)}
        assert all(right.get(number) == value for number, value in found.items())
        assert len(found) >= 3 or at // 8 < _TITLE_BYTES


def test_many_threads_may_claim_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", "t") as journal:

        def claim_some(first: int) -> None:
            for number in range(first, first + 50):
                journal.claim(number, hashes(number))

        threads = [threading.Thread(target=claim_some, args=(100 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_journal(tmp_path / "j", "t")) == 400


def test_a_journal_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match="gone/j"):
        Journal(tmp_path / "gone" / "j", "t")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "j").symlink_to(tmp_path / "victim")
    with pytest.raises(TransferFailed):
        Journal(tmp_path / "j", "t")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_whoever_claims_late_writes_into_no_file_that_was_opened_since(tmp_path: Path) -> None:
    """As a thread that hung in the source until long after its transfer was given up."""
    with Journal(tmp_path / "j", "t") as journal:
        journal.claim(1, hashes(1))
    others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    with pytest.raises(TransferFailed, match="/j"):
        journal.claim(2, hashes(2))
    assert [os.fstat(other).st_size for other in others] == [0] * 8
    for other in others:
        os.close(other)
    assert read_journal(tmp_path / "j", "t") == {1: hashes(1)}


def test_leaving_it_waits_for_no_write_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies on the filesystem that hangs."""
    real, inside, answer = os.write, threading.Event(), threading.Event()

    def hang(fd: int, data: bytes) -> int:
        inside.set()
        answer.wait(60)
        return real(fd, data)

    with Journal(tmp_path / "j", "t") as journal:
        monkeypatch.setattr(os, "write", hang)
        thread = threading.Thread(target=journal.claim, args=(1, hashes(1)))
        thread.start()
        assert inside.wait(60)
    others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    answer.set()
    thread.join()
    assert [os.fstat(other).st_size for other in others] == [0] * 8
    for other in others:
        os.close(other)
    assert read_journal(tmp_path / "j", "t") == {1: hashes(1)}, "into its own file it may"
