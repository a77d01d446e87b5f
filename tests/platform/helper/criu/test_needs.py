"""What an image needs to find where it is brought back, and what is told when it does not."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.helper.criu.machine_profile import build_of
from ebbtide.helper.criu.needs import NeededFile, Needs, lacks, needs_of
from ebbtide.helper.criu.proc_tree import Opened, Tree
from tests.builders.helper import GOOD


@pytest.fixture
def needs(tmp_path: Path) -> Needs:
    (tmp_path / "folder").mkdir()
    (tmp_path / "log").write_text("12345")
    (tmp_path / "data").write_text("12345")
    shutil.copy("/bin/sh", tmp_path / "library")
    return Needs(
        builds={str(tmp_path / "library"): build_of(tmp_path / "library")},
        files=(
            NeededFile(path=str(tmp_path / "log"), size_bytes=5, may_grow=True),
            NeededFile(path=str(tmp_path / "data"), size_bytes=5, may_grow=False),
            NeededFile(path=str(tmp_path / "fifo"), size_bytes=None, may_grow=False),
        ),
        folders=(str(tmp_path / "folder"),),
    )


def test_what_is_as_it_was_lacks_nothing_and_a_log_may_have_grown(needs: Needs, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert list(lacks(needs)) == []
    (tmp_path / "log").write_text("123456789")
    assert list(lacks(needs)) == []


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda here: (here / "folder").rmdir(), "there is no folder {here}/folder"),
    (lambda here: (here / "fifo").unlink(), "there is no file {here}/fifo"),
    (lambda here: (here / "log").write_text("1234"), "{here}/log had 5 bytes and now has 4"),
    (lambda here: (here / "data").write_text("123456"), "{here}/data had 5 bytes and now has 6"),
    (lambda here: (here / "library").unlink(), "there is no file {here}/library"),
    (lambda here: (here / "library").write_text("x"), "{here}/library is another build than the one that was running"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES, ids=[says for _, says in CHANGES])
def test_what_is_not_as_it_was_is_told(
    needs: Needs, tmp_path: Path, change: Callable[[Path], object], says: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    change(tmp_path)
    assert list(lacks(needs)) == [says.format(here=tmp_path)]


def test_a_folder_in_the_place_of_a_file_is_told(needs: Needs, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "data").unlink()
    (tmp_path / "data").mkdir()
    assert list(lacks(needs)) == [f"{tmp_path / 'data'} is not a plain file any more"]


@pytest.mark.parametrize(
    ("flags", "grows"),
    [
        (os.O_WRONLY | os.O_APPEND, True),
        (os.O_RDWR | os.O_APPEND, True),
        (os.O_RDONLY | os.O_APPEND, False),
        (os.O_WRONLY, False),
        (os.O_RDWR, False),
    ],
)
def test_only_a_file_that_is_appended_to_may_grow(flags: int, grows: bool) -> None:
    found = needs_of(Tree((replace(GOOD, opened=(Opened(3, "/log", flags, 5),), mapped=frozenset()),)))
    assert found.files == (NeededFile(path="/log", size_bytes=5, may_grow=grows),)


def test_what_goes_along_in_the_image_is_not_needed(tmp_path: Path) -> None:
    opened = tuple(Opened(n, name, 0) for n, name in enumerate(("/gone (deleted)", "/dev/null", "pipe:[7]")))
    mapped = frozenset({"/memfd:x (deleted)", "/gone (deleted)", "anon_inode:[x]", str(tmp_path / "library")})
    shutil.copy("/bin/sh", tmp_path / "library")
    found = needs_of(Tree((replace(GOOD, opened=opened, mapped=mapped),)))
    assert (found.files, list(found.builds), found.folders) == ((), [str(tmp_path / "library")], ("/",))
