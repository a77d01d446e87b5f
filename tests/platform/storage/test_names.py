"""Names from outside: what passes stays inside, and no two that pass can be mistaken for each other."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import Refused
from ebbtide.storage.names import (
    attempt,
    case_collision,
    file_name,
    name_of_directory,
    object_id,
    ref_directory,
    ref_name,
    tag,
)

HOSTILE = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "../x",
    "a/../b",
    "a/..",
    "a//b",
    "a/",
    "/a",
    "a/./b",
    ".hidden",
    "a/.hidden",
    "a\0b",
    "a\nb",
    "a\x1b[31m",
    "a b",
    "a\\b",
    "C:\\x",
    "a:b",
    "-rf",
    "a/-rf",
    "~root",
    "a%2Fb",
    "ａ",  # full-width letter
    "a\u0301",  # a combining accent
    "\u202ea",  # right-to-left override
    "Ω",
    "a.",
    "a\ud800",
    "x" * 1000,
    "/".join("x" * 20),
    "*",
    "$(reboot)",
    "`reboot`",
    "'",
]


@pytest.mark.proves(
    "a name does not end in a dot",
    "a name fits a directory entry",
    "a name is not nested without end",
    "a name stays in the store's directory",
)
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
@pytest.mark.parametrize("check", [ref_name, tag, attempt, file_name], ids=lambda check: check.__name__)
def test_hostile_names_are_refused_in_one_readable_line(check: object, text: str) -> None:
    assert callable(check)
    with pytest.raises(Refused) as refused:
        check(text)
    told = str(refused.value)
    assert told.isascii() and told.isprintable() and len(told) < 400


@pytest.mark.parametrize("text", ["a/b", "a\n"])
def test_a_tag_is_one_part(text: str) -> None:
    with pytest.raises(Refused):
        tag(text)


@pytest.mark.proves("the store's own file names are its own")
@pytest.mark.parametrize(
    "text", ["manifest.json", "COMMIT", "commit", "Manifest.JSON", "model.safetensors.idx", "x.IDX", "sub/x.idx"]
)
def test_the_stores_own_file_names_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="kept for the store itself"):
        file_name(text)


@pytest.mark.parametrize("text", ["meta-llama/Llama-3.1-8B", "train/run-7/e3", "a", "A_b.c", "_x/y+z=1,2@3"])
def test_ordinary_names_pass(text: str) -> None:
    assert ref_name(text) == text
    assert name_of_directory(ref_directory(ref_name(text))) == text


def test_names_of_the_stores_temporary_files_and_strangers_directories_are_no_ref_names() -> None:
    for directory in (".x.tmp", "a b", "%2F", "a%2F", "a%2F..%2Fb"):
        assert name_of_directory(directory) is None


@settings(deadline=None)
@given(st.text())
@example("a/b")
@example("a%2Fb")
def test_whatever_passes_stays_below_the_directory(text: str) -> None:
    root = Path("/store/refs")
    for check in (ref_name, tag, attempt, file_name):
        try:
            passed = check(text)
        except Refused:
            continue
        for path in (root / passed, root / ref_directory(ref_name(text))):
            assert os.path.normpath(path) == str(path)
            assert path != root and root in path.parents
            assert all(len(part) <= 255 for part in path.parts)


@settings(deadline=None)
@given(st.lists(st.from_regex(r"[a-zA-Z0-9_.%/-]{1,12}", fullmatch=True), min_size=2, max_size=2, unique=True))
def test_two_ref_names_never_share_a_directory(texts: list[str]) -> None:
    directories = []
    for text in texts:
        try:
            directories.append(ref_directory(ref_name(text)))
        except Refused:
            return
    assert directories[0] != directories[1]
    assert not any("/" in directory for directory in directories)


def test_the_longest_name_fits_a_file_name_with_its_temporary_suffix() -> None:
    longest = ref_name("a/" * 7 + "x" * 150)
    assert len(ref_directory(longest)) <= 255
    assert len(f".{tag('x' * 180)}.{'0' * 16}.tmp") <= 255


@pytest.mark.proves("an object id is 64 hexadecimal digits")
@pytest.mark.parametrize("text", ["0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "../" + "0" * 61, "٠" * 64])
def test_an_object_id_is_64_hexadecimal_digits(text: str) -> None:
    with pytest.raises(Refused):
        object_id(text)
    assert object_id("0123456789abcdef" * 4)


def test_names_that_differ_only_in_case_are_found() -> None:
    assert case_collision(["a", "b", "A"]) == ("a", "A")
    assert case_collision(["a", "a", "b"]) is None
