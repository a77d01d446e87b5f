"""A pool's folder has room for every socket, whatever TMPDIR, user and name are; what was not taken is said."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray._private.utils import validate_socket_filepath

from ebbtide.system import runtime_dir as module
from ebbtide.system.runtime_dir import (
    LONGEST,
    LONGEST_TMPDIR,
    RAY_SOCKET,
    SOCKET_BYTES,
    NoRuntimeDir,
    helper_socket,
    runtime_dir,
    tmpdir_of_processes,
    tmpdir_passed_over,
)

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)
BATCH = "slurm_jobdir_of_a_rather_long_account_name/1355700/tmp.node0016/local-scratch"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own that is short."""
    monkeypatch.setattr(tempfile, "tempdir", None)  # what this process found before
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def choose(monkeypatch: pytest.MonkeyPatch, tmpdir: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", tmpdir)
    for name in ("TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)


@given(names, st.one_of(st.integers(0, 70000), st.integers(0, 2**32 - 1)))
def test_the_longest_socket_fits_for_every_name_and_user(pool: str, uid: int) -> None:
    folder = runtime_dir(pool, uid)
    assert len(f"{folder}{RAY_SOCKET}".encode()) <= SOCKET_BYTES
    assert len(os.fsencode(helper_socket(pool, uid))) <= SOCKET_BYTES
    if folder.name != pool:
        assert "~" in folder.name and len(pool) > len(folder.name)


@given(st.lists(names, unique=True, min_size=2, max_size=6))
def test_two_pools_never_share_a_folder(pools: list[str]) -> None:
    assert len({runtime_dir(pool, 1234567) for pool in pools}) == len(pools)


def test_a_short_tmpdir_is_taken_and_nothing_is_said(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, str(short)[: len("/tmp")])
    assert runtime_dir("p", 0) == Path("/tmp/ebbtide-0/p")
    assert tmpdir_passed_over() == "" and tmpdir_of_processes() == "/tmp"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (BATCH, "is too long for sockets"),
        ("missing", "is no folder that can be written"),
        ("file", "is no folder that can be written"),
        ("a b", "has characters that Ray cannot take on its command lines"),
        ("a:b", "has characters that Ray cannot take on its command lines"),
    ],
)
def test_one_that_will_not_do_is_named_and_tmp_taken(
    place: str, words: str, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short / "file").touch()
    if place not in ("missing", "file"):
        (short / place).mkdir(parents=True)
    choose(monkeypatch, str(short / place))
    assert runtime_dir("p", 0) == Path("/tmp/ebbtide-0/p")
    line = tmpdir_passed_over()
    assert line.startswith(f"TMPDIR={short / place} {words}") and line.endswith(f"/tmp/ebbtide-{os.getuid()}")
    assert "\n" not in line


def test_a_relative_one_is_not_another_folder_for_each_command(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / "t").mkdir()
    monkeypatch.chdir(short)
    choose(monkeypatch, "t")
    assert runtime_dir("p", 0) == Path("/tmp/ebbtide-0/p")
    assert "TMPDIR=t is relative" in tmpdir_passed_over() and tmpdir_of_processes() == "/tmp"


def test_one_that_may_not_be_written(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """root may write everywhere, so it is said to us."""
    monkeypatch.setattr(os, "access", lambda place, _mode: place != str(short))
    choose(monkeypatch, str(short))
    assert runtime_dir("p", 0) == Path("/tmp/ebbtide-0/p") and tmpdir_of_processes() == "/tmp"
    assert "is no folder that can be written" in tmpdir_passed_over()


def test_where_nothing_will_do_the_remedy_is_said(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_writable", lambda _place: False)
    choose(monkeypatch, str(short))
    with pytest.raises(NoRuntimeDir, match=rf"TMPDIR={short}.*set TMPDIR to one"):
        runtime_dir("p")


def test_what_a_pool_runs_has_a_tmpdir_with_room_for_sockets(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scratch folder that is too long for Ray alone stays a job's TMPDIR; one with room for no socket does not."""
    some = short / ("x" * (LONGEST_TMPDIR - len(str(short)) - 1))
    some.mkdir()
    choose(monkeypatch, str(some))
    assert tmpdir_passed_over() and tmpdir_of_processes() == str(some)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(some / "01234567-0123-0123-0123-0123456789ab"))
    longer = short / ("x" * (LONGEST_TMPDIR - len(str(short))))
    longer.mkdir()
    choose(monkeypatch, str(longer))
    assert tmpdir_of_processes() == "/tmp"
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(OSError, match="too long"):
        one.bind(str(longer / "01234567-0123-0123-0123-0123456789ab"))


def test_ray_finds_its_longest_socket_short_enough() -> None:
    """The layout is Ray's: this fails when a version of it changes that."""
    validate_socket_filepath("/" + "x" * (LONGEST - 1) + RAY_SOCKET)
    with pytest.raises(OSError, match="107 bytes"):
        validate_socket_filepath("/" + "x" * LONGEST + RAY_SOCKET)
