"""Log files: which belong to whom, tails in bounded pieces, and nothing outside the folder."""

import os
from pathlib import Path

import pytest

from ebbtide_autoscaler.commands.log_reader import PIECE_BYTES, Selector, matching, read_piece, tail_start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    (logs / "serve").mkdir(parents=True)
    for name in ("worker-aa-01000000-77.out", "worker-aa-01000000-77.err", "worker-bb-01000000-777.out"):
        (logs / name).write_text("x\n")
    (logs / "serve" / "replica_seat-chat-0_replica_x.log").write_text("y\n")
    (logs / "worker-cc-01000000-77.out").write_text("")
    (tmp_path / "secret").write_text("no\n")
    return logs


def test_a_process_s_files_are_found_by_its_very_pid(folder: Path) -> None:
    found = matching(folder, [Selector("rank 0", pid=77)])
    assert {one.path for one in found} == {"worker-aa-01000000-77.out", "worker-aa-01000000-77.err"}
    assert {one.label for one in found} == {"rank 0"}


def test_files_are_found_by_name_in_folders_too_and_oldest_come_first(folder: Path) -> None:
    os.utime(folder / "serve" / "replica_seat-chat-0_replica_x.log", (1, 1))
    pattern = r"serve/replica_seat-chat-0_.*\.log"
    found = matching(folder, [Selector("rank", pid=777), Selector("chat/0", pattern=pattern)])
    assert [one.label for one in found] == ["chat/0", "rank"]


def test_nothing_outside_the_folder_is_read(folder: Path) -> None:
    with pytest.raises(ValueError, match="no file of the log folder"):
        read_piece(folder, "../secret", 0)
    (folder / "link").symlink_to(folder.parent / "secret")
    with pytest.raises(ValueError, match="no file of the log folder"):
        read_piece(folder, "link", 0)


@pytest.mark.parametrize(("lines", "tail"), [(1, b"c\n"), (2, b"b\nc\n"), (3, b"a\nb\nc\n"), (9, b"a\nb\nc\n")])
def test_the_last_lines_begin_where_a_line_begins(folder: Path, lines: int, tail: bytes) -> None:
    (folder / "f").write_bytes(b"a\nb\nc\n")
    assert read_piece(folder, "f", tail_start(folder, "f", lines)) == tail


def test_a_huge_file_costs_one_piece(folder: Path) -> None:
    (folder / "f").write_bytes(b"z" * (3 * PIECE_BYTES))
    start = tail_start(folder, "f", 5)
    assert start == 2 * PIECE_BYTES
    assert len(read_piece(folder, "f", 0, 10 * PIECE_BYTES)) == PIECE_BYTES
    assert read_piece(folder, "gone", 0) == b"" and tail_start(folder, "gone", 5) == 0
