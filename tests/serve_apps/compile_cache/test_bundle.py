"""A directory as one file and back, and names that want to lead elsewhere."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.safetensors.file_header import Header, parse_header
from ebbtide.storage.safetensors.file_layout import TensorSpec, plan_container
from ebbtide_serve.compile_cache.bundle import bundle_fill, check_bundle, first_changed, gather, plan_bundle, unpack
from tests.builders.replica import TREE, made, read, write
from tests.platform.storage.stores import stock_tensors


def bundle(root: Path) -> tuple[Header, memoryview]:
    files = gather(root)
    plan = plan_bundle(files)
    content = memoryview(bytearray(plan.file_bytes))
    fill = bundle_fill(plan, files)
    for start in range(0, plan.file_bytes, 1000):  # as a transport asks, in pieces
        fill(start, content[start : start + 1000])
    return parse_header(bytes(content[: len(plan.header)]), plan.file_bytes, root), content


def test_a_tree_comes_back_as_it_was_for_its_owner_alone(tmp_path: Path) -> None:
    write(tmp_path / "a", TREE)
    header, content = bundle(tmp_path / "a")
    assert stock_tensors(bytes(content))["empty"] == ("U8", (0,), b"")
    unpack(header, content, tmp_path / "b")
    assert read(tmp_path / "b") == TREE
    for path in [tmp_path / "b", *(tmp_path / "b").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_links_locks_and_temporary_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, TREE | {"locks/a": b"", "x.lock": b"", "y.tmp": b"1", "z.tmp.123": b"1", "__pycache__/c.pyc": b"1"})
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "linked").symlink_to("/etc", target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    assert {one.name for one in gather(tmp_path)} == TREE.keys()


def test_a_cache_that_is_too_large_is_refused_and_not_cut(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    with pytest.raises(Refused, match="larger than"):
        gather(tmp_path, max_bytes=9000)
    with pytest.raises(Refused, match="larger than"):
        gather(tmp_path, max_files=3)
    header, _ = bundle(tmp_path)
    with pytest.raises(Refused, match="more than a cache may have"):
        check_bundle(header, max_bytes=9000)
    with pytest.raises(Refused, match="more than a cache may have"):
        check_bundle(header, max_files=3)


@pytest.mark.parametrize("act", [lambda path: path.write_bytes(b"other"), lambda path: path.unlink()])
def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path, act: object) -> None:
    write(tmp_path, TREE)
    files = gather(tmp_path)
    assert first_changed(files) == ""
    act(tmp_path / "triton/KEY=/.hidden")  # type: ignore[operator]
    assert first_changed(files) == "triton/KEY=/.hidden"


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    files = gather(tmp_path)
    plan = plan_bundle(files)
    (tmp_path / "triton/KEY=/.hidden").write_bytes(b"x")
    with pytest.raises(Corrupt, match="shorter"):
        bundle_fill(plan, files)(0, memoryview(bytearray(plan.file_bytes)))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        ".",
        "..",
        "a/.",
        "",
        "a\0b",
        "a\nb",
        "a\\b",
        "x/" * 30 + "x",
        "x" * 256,
    ],
)
def test_a_name_that_leads_elsewhere_stops_it_before_the_first_file(tmp_path: Path, name: str) -> None:
    header, content = made({"good": b"1", name: b"2"})
    with pytest.raises(Refused, match="cannot be that of a file"):
        unpack(header, content, tmp_path / "in" / "b")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    plan = plan_container([TensorSpec("w", "F32", (2,))])
    header = parse_header(plan.header, plan.file_bytes, tmp_path)
    with pytest.raises(Refused, match="'w' is no file but F32"):
        unpack(header, memoryview(bytes(plan.file_bytes)), tmp_path / "b")
    header, content = made({"a": b"1", "a/b": b"2"})
    with pytest.raises(Refused, match="'a' cannot be a file and a directory"):
        unpack(header, content, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_unpacked_into_a_directory_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(FileExistsError):
        unpack(*made({"a": b"1"}), tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []


@given(names=st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True))
def test_whatever_a_bundle_is_named_nothing_lands_outside(names: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            header, content = made({name: b"data" for name in names})
            unpack(header, content, root / "in")
        except (Refused, OSError):
            pass
        outside = [path for path in root.rglob("*") if (root / "in") not in (path, *path.parents)]
        assert outside == []


def test_a_link_that_took_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "a", TREE)
    files = gather(tmp_path / "a")
    (tmp_path / "secret").write_bytes(b"s" * 4096)
    (tmp_path / "a" / "triton/KEY=/.hidden").unlink()
    (tmp_path / "a" / "triton/KEY=/.hidden").symlink_to(tmp_path / "secret")
    plan = plan_bundle(files)
    with pytest.raises(OSError, match="symbolic links"):
        bundle_fill(plan, files)(0, memoryview(bytearray(plan.file_bytes)))
    assert first_changed(files) == "triton/KEY=/.hidden"
