"""Ranks without a process group wait for each other, and not for ever."""

import threading
from pathlib import Path

import pytest

from ebbtide_train.session.coordination.file_barrier import file_barrier
from ebbtide_train.session.errors import GangBroken


def test_none_is_through_before_all_are_there(tmp_path: Path) -> None:
    through, last = list[int](), list[bool]()

    def call(rank: int) -> None:
        file_barrier(tmp_path, "off-7-1", rank=rank, world=3)
        through.append(rank)
        last.append((tmp_path / "off-7-1-2").exists())

    threads = [threading.Thread(target=call, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    assert file_barrier(tmp_path, "off-7-1", rank=2, world=3) == tmp_path / "off-7-1-2"
    for thread in threads:
        thread.join(30)
    assert sorted(through) == [0, 1] and last == [True, True]


def test_who_does_not_come_is_named_and_other_roll_calls_do_not_count(tmp_path: Path) -> None:
    for rank in (1, 2):
        (tmp_path / f"off-7-0-{rank}").touch()
    (tmp_path / "off-7-1-2").touch()
    with pytest.raises(GangBroken, match=r"ranks \[1\] have not let go .* within 0 s"):
        file_barrier(tmp_path, "off-7-1", rank=0, world=3, wait_s=0.0)


def test_a_rank_that_can_tell_nobody_says_so(tmp_path: Path) -> None:
    with pytest.raises(GangBroken, match="rank 0 has let go"):
        file_barrier(tmp_path / "none", "off-7-1", rank=0, world=2)
