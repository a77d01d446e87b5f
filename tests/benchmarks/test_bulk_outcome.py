"""How the page cache is dropped: all of it for a result, and nobody else's on a machine that others use."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from benchmarks.bulk.outcome import GENTLY, Outcome, drop_cached, measured

DROP = "/proc/sys/vm/drop_caches"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been written to files of the kernel."""
    found: list[str] = []
    monkeypatch.setattr(Path, "write_text", lambda path, text: found.append(f"{path} {text}"))
    monkeypatch.setattr(os, "sync", lambda: found.append("sync"))
    return found


def test_for_a_result_all_that_the_machine_has_cached_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    monkeypatch.delenv(GENTLY, raising=False)
    drop_cached([tmp_path / "not looked at"])
    assert written == ["sync", f"{DROP} 3"]


def test_gently_only_the_files_at_hand_are_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    monkeypatch.setenv(GENTLY, "1")
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *_: advised.append(os.readlink(f"/proc/self/fd/{fd}")))
    (tmp_path / "a").write_bytes(b"x")
    drop_cached([tmp_path / "a"])
    assert written == []
    assert advised == [str(tmp_path / "a")]


def test_where_the_kernel_refuses_the_files_at_hand_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(GENTLY, raising=False)
    monkeypatch.setattr(os, "sync", lambda: None)

    def refuse(path: Path, text: str) -> int:
        raise PermissionError(f"{path}")

    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *words: advised.append(words[1:]))
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setattr(Path, "write_text", refuse)
    drop_cached([tmp_path / "a"])
    assert advised == [(0, 0, os.POSIX_FADV_DONTNEED)]


SIZE_BYTES = 64 << 20


def work() -> int:
    return len(bytearray(b"x") * SIZE_BYTES)  # written, so it is resident; and gone again at the end


def test_the_peak_is_told_as_it_is_and_as_what_came_on_top() -> None:
    # In a process of its own, as benchmarks have it: what others left here may be freed while it works.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        moved, figures = other.submit(measured, work).result()
    assert moved == SIZE_BYTES
    assert 0.9 * SIZE_BYTES < figures["peak_bytes"] < 1.5 * SIZE_BYTES
    assert figures["peak_rss_bytes"] > figures["peak_bytes"] + (10 << 20), "Python itself is resident too"


def test_an_outcome_comes_back_from_its_line() -> None:
    one = Outcome(
        name="ours", size_bytes=2 * 10**9, seconds=4.0, cpu_s=1.0, peak_bytes=3, peak_rss_bytes=9, modes={"posix": 5}
    )
    assert Outcome.from_line(one.to_line()) == one
    assert (one.gb_per_s, one.cpu_s_per_gb) == (0.5, 0.5)
