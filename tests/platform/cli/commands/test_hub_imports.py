"""Models by their id on the hub: validate gives the one command that imports them, and then they are the store's."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from ebbtide.cli.commands.hub_imports import bring_in, missing
from ebbtide.cli.main import cli
from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide.config.checks.hub_models import with_hub_models
from ebbtide.config.loading.pool_file_loader import load_file
from tests.platform.cli.commands.hub_server import serving


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    save_file({"w": np.ones(4, np.float32)}, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text('{"model_type": "llama"}')
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "pool" / "shared").mkdir(parents=True)
    return tmp_path / "pool" / "pool.yaml"


def write(file: Path, *models: str) -> Path:
    endpoints = "".join(f"  - {{name: m{index}, model: '{one}'}}\n" for index, one in enumerate(models))
    file.write_text(f"pool: {{name: demo, slots: 1, shared_dir: shared}}\nendpoints:\n{endpoints}")
    return file


def validate(file: Path) -> Result:
    return CliRunner().invoke(cli, ["validate", str(file), "--json"])


def the_hint(file: Path) -> str:
    (problem,) = json.loads(validate(file).stdout)["problems"]
    assert problem["path"] == "endpoints[0].model" and problem["line"] == 3
    return str(problem["hint"])


IDS = {
    "hf://org/tiny": ("org/tiny:latest", "hf://org/tiny --name org/tiny"),
    "org/tiny": ("org/tiny:latest", "hf://org/tiny --name org/tiny"),
    "hf://org/tiny@v1.0": ("org/tiny:v1.0", "hf://org/tiny@v1.0 --name org/tiny --tag v1.0"),
}


@pytest.mark.parametrize("text", IDS)
def test_validate_gives_the_one_command_that_imports_it(text: str, file: Path) -> None:
    stored, words = IDS[text]
    write(file, text)
    hint = the_hint(file)
    assert f"ebbtide models import {words} --pool-file {file};" in hint
    assert f"ebbtide up {file} --import" in hint
    done = CliRunner().invoke(cli, ["validate", str(file), "--offline"])
    assert done.exit_code == 0, "the file alone is right"
    # The words of the command but the source, which is no hub here.
    source = model(file.parent.parent / "source")
    command = shlex.split(hint.partition("ebbtide ")[2].partition(";")[0])
    command[2] = str(source)
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert validate(file).exit_code == 0
    assert str(with_hub_models(load_file(file)).config.endpoints[0].model) == stored


def test_a_directory_beside_the_file_is_that_directory(file: Path) -> None:
    there = model(file.parent / "org" / "tiny")
    write(file, "org/tiny")
    assert validate(file).exit_code == 0
    assert with_hub_models(load_file(file)).config.endpoints[0].model == there
    assert missing(load_file(file)) == []


@pytest.mark.parametrize("text", ["./org/tiny", "/org/tiny", "org/tiny/", "a/b/c", "tiny", "../org/tiny"])
def test_what_can_be_no_id_is_a_directory(text: str, file: Path) -> None:
    write(file, text)
    assert missing(load_file(file)) == []
    (problem,) = json.loads(validate(file).stdout)["problems"]
    assert problem["message"].startswith("there is no directory ")


@pytest.mark.parametrize(
    "text", ["hf://org", "hf://org/a/b", "hf://", "hf://org/a@", "hf://../x", "hf://o/" + "a" * 97]
)
def test_what_is_no_id_of_the_hub_is_refused(text: str, file: Path) -> None:
    write(file, text)
    (problem,) = json.loads(validate(file).stdout)["problems"]
    assert problem["message"] == "expected hf://org/name, or hf://org/name@revision"


PROGRAM = """
import sys
from pathlib import Path
from ebbtide.cli.commands.hub_imports import bring_in
from ebbtide.config.loading.pool_file_loader import load_file
bring_in(load_file(Path(sys.argv[1])), quiet=False)
"""


def bring_in_from(hub: str, file: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since huggingface_hub reads its address when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_DISABLE_TELEMETRY": "1"}
    words = [sys.executable, "-c", PROGRAM, str(file)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_what_is_missing_is_brought_in_once_with_single_lines(file: Path, tmp_path: Path) -> None:
    model(tmp_path / "hub" / "org" / "tiny")
    write(file, "hf://org/tiny", "org/tiny", "hf://org/tiny@v1")
    with serving(tmp_path / "hub") as (address, asked):
        done = bring_in_from(address, file)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "" and "\r" not in done.stderr and "\x1b" not in done.stderr
        lines = done.stderr.splitlines()
        assert lines[0] == "importing hf://org/tiny as org/tiny:latest"
        assert sum(line.startswith("org/tiny:latest: imported; object ") for line in lines) == 1
        assert sum(line.startswith("org/tiny:v1: ") for line in lines) == 1
        assert validate(file).exit_code == 0
        asked.clear()
        again = bring_in_from(address, file)
    assert (again.returncode, again.stderr, asked) == (0, "", []), "what is there is not asked for"


def test_a_model_that_the_hub_does_not_have_is_one_error(file: Path, tmp_path: Path) -> None:
    write(file, "hf://org/absent")
    (tmp_path / "hub").mkdir()
    with serving(tmp_path / "hub") as (address, _):
        done = bring_in_from(address, file)
    assert done.returncode != 0
    assert "org/absent" in done.stderr.splitlines()[-1]
    assert missing(load_file(file))


def test_an_import_that_is_stopped_says_how_to_go_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebbtide.cli.commands.shown_import.import_model", stopped)
    with pytest.raises(CommandFailed, match="the same command goes on with it"):
        bring_in(load_file(write(file, "hf://org/tiny")), quiet=True)
