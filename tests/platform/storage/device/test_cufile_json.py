"""cuFile's settings: comments are understood, addresses are replaced, and everything else stays as it was."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.device import cufile_json
from ebbtide.storage.errors import Refused
from tests.examples import examples

STOCK = """{
    // NOTE : Application can override custom configuration via export CUFILE_ENV_PATH_JSON=<filepath>
    "logging": {
        //"dir": "/home/<xxxx>",
        "level": "ERROR" // ERROR|WARN|INFO
    },
    "properties": {
        "use_pci_p2pdma": false, /* all
        of it */
        "rdma_dev_addr_list": [ "10.0.1.1", "10.0.2.1" ],
        "url": "http://not.a/comment",
        "quoted": "a \\" // b"
    },
    "fs": {
        "lustre": { "mount_table": { "/lustre/a": { "rdma_dev_addr_list": ["10.0.1.1"] } } },
        "nfs": { "rdma_dev_addr_list": ["10.0.1.1", "10.0.9.9"] },
        "weka": { "rdma_write_support": false }
    }
}
"""

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=6), inner), max_leaves=12
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=5)
COMMENTS = st.sampled_from(['// it\'s "so"\n', "/* { [ \n ] */", "//\n", "/**/", ' // "properties": {\n'])


def test_the_file_that_libcufile_ships_is_understood() -> None:
    config = cufile_json.parse(STOCK, "cufile.json")
    assert config["logging"] == {"level": "ERROR"}
    assert config["properties"]["url"] == "http://not.a/comment"
    assert config["properties"]["quoted"] == 'a " // b'
    assert cufile_json.listed_addresses(config) == {
        "properties.rdma_dev_addr_list": ("10.0.1.1", "10.0.2.1"),
        "fs.lustre.mount_table./lustre/a.rdma_dev_addr_list": ("10.0.1.1",),
        "fs.nfs.rdma_dev_addr_list": ("10.0.1.1", "10.0.9.9"),
    }


@settings(deadline=None, max_examples=examples(60))
@given(value=OBJECTS, comments=st.lists(COMMENTS, max_size=20))
def test_comments_change_no_value(value: dict[str, Any], comments: list[str]) -> None:
    lines = json.dumps(value, indent=1).splitlines(keepends=True)  # strings hold no line break once they are dumped
    mixed = "".join(line + comment for line, comment in zip(lines, comments + [""] * len(lines), strict=False))
    assert cufile_json.parse(mixed, "f") == value


@settings(deadline=None, max_examples=examples(60))
@given(text=st.text(alphabet='ab"\\/* \n{}:,[]', max_size=60))
def test_any_text_keeps_its_places(text: str) -> None:
    kept = cufile_json.without_comments(text)
    assert len(kept) == len(text) and kept.count("\n") == text.count("\n")
    try:
        cufile_json.parse(text, "f")
    except Refused as error:
        assert str(error).startswith("f:")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "f:1:1: this is no JSON"),
        ("[1]", "one JSON object, not a list"),
        ("null", "not a NoneType"),
        ('{\n  "a": // no value\n}', "f:3:1: this is no JSON"),
        ('{"a": "open\n}', "f:1:12: this is no JSON"),
        ("{/* for ever", "f:1:"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_settings_file_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(Refused, match=r"^f") as caught:
        cufile_json.parse(text, "f")
    assert told in str(caught.value)


@settings(deadline=None, max_examples=examples(60))
@given(config=OBJECTS, addresses=st.lists(st.ip_addresses(v=4).map(str), min_size=1, max_size=4))
def test_only_lists_of_addresses_change(config: dict[str, Any], addresses: list[str]) -> None:
    if not isinstance(config.get("properties", {}), dict):
        with pytest.raises(Refused, match="'properties' must be a JSON object"):
            cufile_json.with_addresses(config, addresses)
        return
    new = cufile_json.with_addresses(config, addresses)
    assert new["properties"].pop("rdma_dev_addr_list") == addresses
    assert new == {"properties": {}} | json.loads(json.dumps(config))


def test_a_choice_among_the_cards_is_kept_as_far_as_it_still_exists() -> None:
    config = cufile_json.parse(STOCK, "f")
    new = cufile_json.with_addresses(config, ["10.0.9.9", "10.0.3.1"])
    assert new["properties"]["rdma_dev_addr_list"] == ["10.0.9.9", "10.0.3.1"]
    assert new["fs"]["nfs"]["rdma_dev_addr_list"] == ["10.0.9.9"]
    assert new["fs"]["lustre"]["mount_table"]["/lustre/a"]["rdma_dev_addr_list"] == ["10.0.9.9", "10.0.3.1"]
    assert new["fs"]["weka"] == {"rdma_write_support": False}
    named = cufile_json.with_addresses({"fs": {"nfs": {"rdma_dev_addr_list": ["mlx5_1"]}}}, ["10.0.9.9"], ["mlx5_1"])
    assert named["fs"]["nfs"]["rdma_dev_addr_list"] == ["mlx5_1"]


def test_a_file_is_written_anew_with_its_mode_and_its_other_keys(tmp_path: Path) -> None:
    path, link = tmp_path / "node.json", tmp_path / "link.json"
    path.write_text(STOCK)
    path.chmod(0o640)
    link.symlink_to(path)
    cufile_json.write_addresses(link, ["10.7.0.1"])
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    written = json.loads(path.read_text())
    assert written == cufile_json.with_addresses(cufile_json.parse(STOCK, "f"), ["10.7.0.1"])
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_new_file_takes_over_what_the_file_in_force_says(tmp_path: Path) -> None:
    base, path = tmp_path / "etc.json", tmp_path / "node.json"
    base.write_text(STOCK)
    cufile_json.write_addresses(path, ["10.7.0.1"], base=base)
    assert json.loads(path.read_text())["logging"] == {"level": "ERROR"}
    assert path.stat().st_mode & 0o777 == 0o644
    cufile_json.write_addresses(tmp_path / "bare.json", ["10.7.0.1"], base=tmp_path / "none.json")
    assert json.loads((tmp_path / "bare.json").read_text()) == {"properties": {"rdma_dev_addr_list": ["10.7.0.1"]}}


@pytest.mark.parametrize("content", [b"not json", b"[]", b"\xff\xfe{}", b'{"properties": 1}', b" " * (1 << 21)])
def test_a_file_of_something_else_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(content)
    with pytest.raises(Refused):
        cufile_json.write_addresses(path, ["10.7.0.1"])
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.json"
    path.write_text(STOCK)

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cufile_json.write_addresses(path, ["10.7.0.1"])
    assert path.read_text() == STOCK and list(tmp_path.iterdir()) == [path]


def test_the_environment_names_another_file() -> None:
    assert cufile_json.path_in_force({}) == "/etc/cufile.json"
    assert cufile_json.path_in_force({"CUFILE_ENV_PATH_JSON": ""}) == "/etc/cufile.json"
    assert cufile_json.path_in_force({"CUFILE_ENV_PATH_JSON": "/run/node.json"}) == "/run/node.json"
