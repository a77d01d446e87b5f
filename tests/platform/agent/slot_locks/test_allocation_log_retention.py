"""Allocation logs stay few, evidence of the last hours stays whole, and no living holder loses its log."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.agent.slot_locks import allocation_log, allocation_log_retention
from ebbtide.agent.slot_locks.allocation_log import AllocationLog, read_occupancies
from ebbtide.agent.slot_locks.allocation_log_retention import (
    BYTES_MAX,
    EVIDENCE_S,
    FILES_MAX,
    KEPT_FILES,
    KEPT_S,
    LogFile,
    Writer,
    sweep,
    to_remove,
    writer_of,
)
from ebbtide.client.messages import SlotRef
from tests.platform.agent.conftest import wait_until

NOW_S = 1_000_000_000.0
HOUR_S = 3600.0


def log(number: int, age_s: float, *, size_bytes: int = 768) -> LogFile:
    return LogFile(f"n-{number}-1-0.jsonl", Writer("n", 0, number, 1), size_bytes, NOW_S - age_s)


def nobody(_: Writer) -> bool:
    return False


def numbers(files: list[LogFile]) -> list[int]:
    return [file.writer.pid for file in files]


def test_the_newest_stay_however_old_and_so_does_the_last_day() -> None:
    old = [log(number, 30 * KEPT_S + number) for number in range(KEPT_FILES + 2)]
    assert numbers(to_remove(old, NOW_S, nobody)) == [KEPT_FILES + 1, KEPT_FILES]
    day = [log(number, KEPT_S - 1) for number in range(2 * KEPT_FILES)]
    assert to_remove(day, NOW_S, nobody) == []
    both = to_remove([*old, *[log(10_000 + number, 1.0) for number in range(KEPT_FILES)]], NOW_S, nobody)
    assert numbers(both) == list(reversed(range(KEPT_FILES + 2))), "the oldest go first"


def test_too_many_or_too_large_of_one_day_go_but_never_the_last_two_hours() -> None:
    many = [log(number, 3 * HOUR_S + number) for number in range(FILES_MAX + 3)]
    assert sorted(numbers(to_remove(many, NOW_S, nobody))) == [FILES_MAX, FILES_MAX + 1, FILES_MAX + 2]
    large = [log(number, 3 * HOUR_S + number, size_bytes=BYTES_MAX // 4) for number in range(6)]
    assert numbers(to_remove(large, NOW_S, nobody)) == [5, 4]
    fresh = [log(number, EVIDENCE_S - 1, size_bytes=BYTES_MAX) for number in range(FILES_MAX + 3)]
    assert to_remove(fresh, NOW_S, nobody) == []


@given(
    st.lists(st.tuples(st.floats(0, 3 * KEPT_S), st.integers(0, BYTES_MAX // 8), st.booleans()), max_size=60),
    st.integers(1, 8),
    st.integers(8, 20),
)
def test_whatever_lies_there_what_goes_may_go_and_what_stays_is_bounded(
    found: list[tuple[float, int, bool]], kept_files: int, files_max: int
) -> None:
    files = [log(number, age_s, size_bytes=size) for number, (age_s, size, _) in enumerate(found)]
    holds = {number for number, (_, _, lives) in enumerate(found) if lives}
    with pytest.MonkeyPatch.context() as small:
        small.setattr(allocation_log_retention, "KEPT_FILES", kept_files)
        small.setattr(allocation_log_retention, "FILES_MAX", files_max)
        going = to_remove(files, NOW_S, lambda writer: writer.pid in holds)
        left = [file for file in files if file not in going]
        assert to_remove(left, NOW_S, lambda writer: writer.pid in holds) == []
    for file in going:
        assert file.writer.pid not in holds
        assert NOW_S - file.last_s > EVIDENCE_S
    may_go = [f for f in left if f.writer.pid not in holds and NOW_S - f.last_s > EVIDENCE_S]
    assert len(may_go) <= files_max and sum(file.size_bytes for file in may_go) <= BYTES_MAX
    assert len([file for file in may_go if NOW_S - file.last_s > KEPT_S]) <= kept_files


def test_a_name_tells_who_wrote_it_and_other_files_are_nobodys() -> None:
    assert writer_of("01234567-9-11-2.jsonl") == writer_of("01234567-9-11-2.old.jsonl") == Writer("01234567", 2, 9, 11)
    assert writer_of("my-node-9-11-2.jsonl") == Writer("my-node", 2, 9, 11)
    for name in ("torn.jsonl", "n-9-1.jsonl", "01234567-9-11-2.jsonl.part", "README"):
        assert writer_of(name) is None


# ---- on a filesystem, which may lie


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five old logs, of which two are too many, and a file that is none of ours."""
    monkeypatch.setattr(allocation_log_retention, "KEPT_FILES", 3)
    for number in range(5):
        path = tmp_path / f"n-{number}-1-0.jsonl"
        path.write_text("{}\n")
        os.utime(path, (0, NOW_S - 2 * KEPT_S - number))
    (tmp_path / "notes.txt").write_text("mine")
    os.utime(tmp_path / "notes.txt", (0, 0))
    return tmp_path


def left(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("*.jsonl"))


def test_a_sweep_removes_what_is_too_much_and_nothing_else(folder: Path) -> None:
    assert sweep(folder / "missing", NOW_S, nobody) == 0
    assert sweep(folder, NOW_S, lambda writer: writer.pid == 4) == 1
    assert left(folder) == [0, 1, 2, 4]
    assert sweep(folder, NOW_S, nobody) == 1
    assert left(folder) == [0, 1, 2] and (folder / "notes.txt").exists()
    assert sweep(folder, NOW_S, nobody) == 0


def test_a_file_that_was_written_since_it_was_listed_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = allocation_log_retention._listed(folder)
    monkeypatch.setattr(allocation_log_retention, "_listed", lambda _: listed)
    os.utime(folder / "n-4-1-0.jsonl", (0, NOW_S))  # its process parks, and has just come back
    (folder / "n-3-1-0.jsonl").unlink()  # and another arbiter sweeps too
    assert sweep(folder, NOW_S, nobody) == 0
    assert left(folder) == [0, 1, 2, 4]


def test_a_listing_of_files_that_are_gone_and_a_directory_that_refuses_cost_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def refuse(path: Path, *_: Any, **__: Any) -> None:
        asked.append(path.name)
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as lying:
        lying.setattr(Path, "unlink", refuse)
        assert sweep(folder, NOW_S, nobody) == 0
    assert asked == ["n-4-1-0.jsonl"] and "cannot be removed: Read-only" in caplog.text
    assert left(folder) == [0, 1, 2, 3, 4]

    class Ghosts:
        """A directory whose cache names files that are not there."""

        def __init__(self, path: Path) -> None:
            self._real = os.listdir(path)

        def __enter__(self) -> Iterator["Ghost"]:
            return iter([Ghost("n-99-1-0.jsonl"), *(Ghost(name) for name in self._real)])

        def __exit__(self, *_: object) -> None:
            pass

    class Ghost:
        def __init__(self, name: str) -> None:
            self.name = name

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            return os.stat(folder / self.name, follow_symlinks=follow_symlinks)

    with monkeypatch.context() as lying:
        lying.setattr(os, "scandir", Ghosts)
        assert sweep(folder, NOW_S, nobody) == 2
    assert left(folder) == [0, 1, 2]


# ---- the writers


def test_a_holder_whose_log_was_removed_begins_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_log, "HOLDING_EVERY_S", 0.005)
    one = AllocationLog(tmp_path, SlotRef("0123456789", 1), workload="mine", epoch=7)
    wait_until(lambda: any(found.end_s > found.begin_s for found in read_occupancies(tmp_path)))
    (before,) = read_occupancies(tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    wait_until(lambda: any(found.end_s > before.end_s for found in read_occupancies(tmp_path)))
    one.note_released()
    one.close()
    (after,) = read_occupancies(tmp_path)
    assert (after.workload, after.epoch, after.begin_s, after.released) == ("mine", 7, before.begin_s, True)


def test_the_log_of_a_process_that_parks_for_ever_is_bounded_and_keeps_its_newest_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation_log, "_FILE_BYTES", 4 * 384)  # two leases
    for turn in range(9):
        one = AllocationLog(tmp_path, SlotRef("0123456789", 1), workload="mine", epoch=turn)
        one.note_released()
        one.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8 * 384
    assert [found.epoch for found in read_occupancies(tmp_path)] == [6, 7, 8]
    assert len(list(tmp_path.iterdir())) == 2
    assert all(json.loads(line) for path in tmp_path.iterdir() for line in path.read_bytes().splitlines())


def test_a_log_that_goes_while_all_are_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [*real(path, pattern), path / "n-1-1-0.jsonl"])
    assert read_occupancies(tmp_path) == []
