"""The second look: each thing that the file names and the world lacks is told at its line; nothing is changed."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ebbtide.config.checks.machine_checks import check, model_fault, world_problems
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_file


def problems(file: Path, environ: Mapping[str, str] | None = None, *, starting: bool = False) -> list[str]:
    found = world_problems(load_file(file), environ=environ or {}, starting=starting)
    return [f"{p.line}:{p.column}: {p.path}: {p.message}" + (f" ({p.hint})" if p.hint else "") for p in found]


def tree(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*")}


def test_a_file_whose_world_is_there_passes_and_nothing_is_changed(world: Path) -> None:
    before = tree(world.parent)
    check(load_file(world), environ={}, starting=True)
    assert tree(world.parent) == before


def test_every_missing_thing_is_told_at_once(world: Path) -> None:
    (world.parent / "models" / "tiny" / "tokenizer.json").unlink()
    (world.parent / "code" / "train.py").write_text("def mian(): ...\n")
    (world.parent / "users.key").unlink()
    (world.parent / "shared").write_text("a file")
    with pytest.raises(ConfigErrors) as caught:
        check(load_file(world), environ={})
    where = world.parent
    assert [str(problem).removeprefix(f"{world}:") for problem in caught.value.problems] == [
        f"4:15: on this machine: pool.shared_dir: {where}/shared is no directory",
        f"7:12: on this machine: endpoints[0].model: {where}/models/tiny has no tokenizer.json",
        f"13:17: on this machine: jobs[0].entrypoint: {where}/code/train.py defines no 'main' (did you mean 'mian'?)",
        f"20:13: on this machine: keys[0].secret: the secret file {where}/users.key cannot be read: "
        "No such file or directory",
    ]


def test_a_submission_starts_no_pool(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("pool:\n  name: demo\n")
    assert problems(file) == []
    assert problems(file, starting=True) == [
        "1:1: pool: shared_dir is required to start a pool (this file only submits jobs to one)"
    ]


def test_a_job_directory_that_is_not_there_is_told(world: Path) -> None:
    world.write_text(world.read_text().replace("working_dir: code", "working_dir: cod"))
    assert problems(world) == [f"14:18: jobs[0].working_dir: there is no directory {world.parent}/cod"]


def test_secrets_by_environment_are_looked_up_where_the_caller_says(world: Path) -> None:
    world.write_text(world.read_text().replace("{file: users.key}", "{env: EBB_KEY}"))
    assert problems(world) == ["20:13: keys[0].secret: the environment variable EBB_KEY is not set"]
    assert problems(world, {"EBB_KEY": "x" * 32}) == []


def test_two_keys_with_one_secret_are_told_and_revoked_keys_need_none(world: Path) -> None:
    again = "  - {name: others, secret: {file: users.key}}\n  - {name: old, secret: {file: gone}, revoked: true}\n"
    world.write_text(world.read_text() + again)
    assert problems(world) == ["22:28: keys[1].secret: it is the same secret as that of key 'users'"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.safetensors", None, "has no weights: expected *.safetensors"),
        ("model.safetensors", b"", "has no weights: expected *.safetensors"),
        ("config.json", None, "has no config.json"),
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b"\xff", "config.json is not JSON"),
        ("tokenizer.json", b"[]", "tokenizer.json is no JSON object"),
    ],
)
def test_a_model_directory_must_be_complete(world: Path, name: str, content: bytes | None, expected: str) -> None:
    model = world.parent / "models" / "tiny"
    assert model_fault(model) is None
    (model / name).unlink() if content is None else (model / name).write_bytes(content)
    assert expected in str(model_fault(model))


def test_a_model_of_the_store_needs_no_directory(world: Path) -> None:
    world.write_text(world.read_text().replace("models/tiny", "org/tiny:latest\n    load: {weights: checkpoint}"))
    assert problems(world) == []


def test_a_model_that_is_no_directory_is_told(tmp_path: Path) -> None:
    assert model_fault(tmp_path / "gone") == f"there is no directory {tmp_path}/gone"
    (tmp_path / "file").touch()
    assert model_fault(tmp_path / "file") == f"{tmp_path}/file is no directory"
    os.mkfifo(tmp_path / "pipe")
    assert model_fault(tmp_path / "pipe") == f"{tmp_path}/pipe is no directory"


def test_an_engine_of_ones_own_looks_at_its_model_by_itself(world: Path) -> None:
    (world.parent / "models" / "tiny" / "tokenizer.json").unlink()
    world.write_text(world.read_text().replace("models/tiny", "models/tiny\n    engine_class: my.engines:Mine"))
    assert problems(world) == []
