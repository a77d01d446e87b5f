"""`ebbtide init` asks nothing, writes what runs here, and replaces nothing that is there."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.cli.main import cli
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.config.checks.machine_checks import check
from ebbtide.config.loading.pool_file_loader import load_file
from ebbtide_quickstart import init as init_module
from ebbtide_quickstart.example_model import make_example_model


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The models that were made; making one for real takes seconds and is in `test_quick_demo`."""
    found: list[Path] = []

    def make(folder: Path) -> None:
        found.append(folder)
        folder.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (folder / name).write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(64))

    monkeypatch.setattr(init_module, "make_example_model", make)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path.with_name("home")))
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["init", *words])


def test_what_it_writes_is_valid_on_this_machine(tmp_path: Path, made: list[Path]) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "Next: ebbtide up pool.yaml"
    assert made == [tmp_path / "models" / "tiny"]
    check(load_file(tmp_path / "pool.yaml"), environ={}, starting=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "models", "pool.yaml"]


def test_twice_replaces_nothing_and_says_how(tmp_path: Path, made: list[Path]) -> None:
    assert run().exit_code == 0
    (tmp_path / "pool.yaml").write_text("mine")
    (tmp_path / "code" / "train.py").write_text("also mine")
    again = run()
    assert again.exit_code == 2 and "--force" in again.stderr
    assert (tmp_path / "pool.yaml").read_text() == "mine"
    assert run("--force").exit_code == 0
    assert (tmp_path / "pool.yaml").read_text() != "mine"
    assert (tmp_path / "code" / "train.py").read_text() == "also mine" and len(made) == 1


def test_it_names_a_port_that_is_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8000))
        except OSError:
            pass  # another process has it, which serves as well
        else:
            taken.listen()
        result = run("--json")
        assert result.exit_code == 0, result.output
        answer: Any = json.loads(result.stdout)
    assert answer["port"] != 8000
    assert load_file(tmp_path / "pool.yaml").config.gateway.port == answer["port"]


def test_a_model_and_a_job_of_ones_own_make_no_examples(tmp_path: Path, made: list[Path]) -> None:
    assert run("mine.yaml", "--model", "/models/mine", "--job", "pkg.mod:fit", "--gpus", "3").exit_code == 0
    assert made == [] and [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    config = load_file(tmp_path / "mine.yaml").config
    assert (str(config.endpoints[0].model), config.jobs[0].entrypoint) == ("/models/mine", "pkg.mod:fit")
    assert config.pool.slots == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "0"), "0 is not in the range"),
        (("--gpus", "many"), "not a valid integer"),
        (("--job", "train.py"), "jobs[0].entrypoint"),
        (("--job", ""), "jobs[0].entrypoint"),
        (("--modle", "x"), "No such option"),
    ],
)
def test_wrong_words_write_nothing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2 and said in result.stderr and list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("file/pool.yaml")
    assert result.exit_code == 2 and "file" in result.stderr and "Traceback" not in result.output


def test_a_model_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    with pytest.raises(Exception, match=r"cannot be made: .*in the way"):
        make_example_model(tmp_path / "in the way" / "model")


@pytest.mark.parametrize("model", ["org/name", "hf://org/name"])
def test_a_model_of_the_hub_is_imported_by_the_next_command(tmp_path: Path, made: list[Path], model: str) -> None:
    result = run("--model", model)
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "Next: ebbtide up pool.yaml --import"
    assert f"model: {model}  # of the Hugging Face hub" in (tmp_path / "pool.yaml").read_text().replace('"', "")


def test_a_directory_of_that_name_is_that_directory(tmp_path: Path, made: list[Path]) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert run("--model", "org/name").stdout.splitlines()[-1] == "Next: ebbtide up pool.yaml"


def test_beside_a_pool_that_is_up_the_file_keeps_its_port(tmp_path: Path) -> None:
    save_cluster(ClusterRecord("mine", "127.0.0.1:1", "", "http://127.0.0.1:8123", "/shared", "pool.yaml"))
    assert run().exit_code == 0
    assert load_file(tmp_path / "pool.yaml").config.gateway.port == 8123


@pytest.mark.parametrize(
    ("entrypoint", "name"), [("spiral:main", "spiral"), ("my_pkg.My_Train:fit", "my-train"), ("chat:fit", "chat-job")]
)
def test_a_job_has_the_name_of_its_module(tmp_path: Path, entrypoint: str, name: str) -> None:
    assert run("--job", entrypoint).exit_code == 0
    assert load_file(tmp_path / "pool.yaml").config.jobs[0].name == name
