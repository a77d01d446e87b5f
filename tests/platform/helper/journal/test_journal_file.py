"""The journal on the disk: what was written is read, a torn end is cut off, damage is told."""

import os
from pathlib import Path

import pytest

from ebbtide.helper.errors import HelperUnusable
from ebbtide.helper.journal import journal_file as module
from ebbtide.helper.journal.journal_file import Journal, encode
from ebbtide.helper.journal.workload_states import Op, Step
from ebbtide.storage.files.durable_files import Disk
from tests.builders.helper import line


def written(folder: Path, *names: str) -> Path:
    journal = Journal(folder, Disk())
    for name in names:
        journal.write(line(name))
    journal.close()
    return folder / "journal"


def test_a_restarted_helper_knows_what_the_one_before_knew(tmp_path: Path) -> None:
    path = written(tmp_path / "state", "a", "b")
    again = Journal(path.parent, Disk())
    assert set(again.book.entries) == {"a", "b"}
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cut", [1, 20, 10_000])
@pytest.mark.proves("a torn last line was never acted upon")
def test_a_torn_last_line_was_never_acted_upon(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "state", "a", "b")
    last = len(encode(line("b")))
    path.write_bytes(path.read_bytes()[: -min(cut, last)])
    again = Journal(path.parent, Disk())
    assert set(again.book.entries) == {"a"}
    again.write(line("c"))
    again.close()
    assert set(Journal(path.parent, Disk()).book.entries) == {"a", "c"}


@pytest.mark.parametrize("damage", [b'{"at_s"', b"\n", b"0" * 16 + b' {"at_s":0}'])
def test_a_damaged_line_keeps_the_helper_from_starting(tmp_path: Path, damage: bytes) -> None:
    path = written(tmp_path / "state", "a", "b")
    first, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(first + b"\n" + damage + b"\n" + rest)
    with pytest.raises(HelperUnusable, match="line 2 is damaged"):
        Journal(path.parent, Disk())


@pytest.mark.proves("a damaged line is no line")
def test_one_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path / "state", "a", "b")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'"pid":100') + 7] ^= 1  # another number: still JSON, still a line
    path.write_bytes(raw)
    with pytest.raises(HelperUnusable, match=r"line 1 is damaged \(the hash does not fit"):
        Journal(path.parent, Disk())


@pytest.mark.proves("one helper works in a folder")
def test_a_second_helper_is_refused(tmp_path: Path) -> None:
    first = Journal(tmp_path / "state", Disk())
    with pytest.raises(HelperUnusable, match="another helper works"):
        Journal(tmp_path / "state", Disk())
    first.close()
    Journal(tmp_path / "state", Disk()).close()


@pytest.mark.proves("a line that is not allowed is not written")
def test_a_line_that_is_not_allowed_is_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state", Disk())
    journal.write(line("a"))
    before = (tmp_path / "state" / "journal").read_bytes()
    with pytest.raises(ValueError, match="cannot go from"):
        journal.write(line("a", Op.DUMP, Step.PLACED))
    assert (tmp_path / "state" / "journal").read_bytes() == before


@pytest.mark.proves("a line is on the disk before the next step")
def test_a_line_is_on_the_disk_when_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, synced = Journal(tmp_path / "state", Disk()), list[bytes]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((tmp_path / "state" / "journal").read_bytes()))
    journal.write(line("a"))
    assert synced == [encode(line("a"))]


@pytest.mark.proves("a disk that fails ends the helper", "half a line ends the helper")
def test_a_disk_that_does_not_take_a_line_ends_the_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the line is there is not known then."""
    write = os.write

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    for name, does in (("write", lambda fd, raw: write(fd, raw[:-5])), ("fsync", broken)):
        journal = Journal(tmp_path / name, Disk())
        with monkeypatch.context() as patch:
            patch.setattr(os, name, does)
            with pytest.raises(HelperUnusable, match="cannot be written"):
                journal.write(line("a"))
        assert journal.book.entries == {}


def test_the_journal_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_ABOVE_BYTES", 2000)
    journal = Journal(tmp_path / "state", Disk())
    journal.write(line("a"))
    for number in range(50):
        journal.write(line("a", Op.LOCK, Step.INTENT, str(number)))
        journal.write(line("a", Op.LOCK, Step.DONE, str(number)))
        assert (tmp_path / "state" / "journal").stat().st_size < 3000
    journal.close()
    assert set(Journal(tmp_path / "state", Disk()).book.entries) == {"a"}
