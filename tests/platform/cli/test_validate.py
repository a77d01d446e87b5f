"""`ebbtide validate`: for people, for programs, with and without a look at the world."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from ebbtide.cli.main import cli

TEXT = "pool: {name: demo, slots: 1, shared_dir: shared}\nendpoints:\n  - {name: tiny, model: nowhere}\n"


def validate(file: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["validate", str(file), *options])


def test_a_good_file_is_said_to_be_valid(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("pool: {name: demo}\n")
    result = validate(file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{file}: valid\n", "")


def test_offline_looks_at_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(TEXT)
    online, offline = validate(file), validate(file, "--offline")
    assert (offline.exit_code, offline.stdout) == (0, f"{file}: valid (the file alone)\n")
    assert online.exit_code == 2
    message = f"{file}:3:25: on this machine: endpoints[0].model: there is no directory {tmp_path}/nowhere"
    assert online.stderr == f"{message}\n1 problem\n"
    assert list(tmp_path.iterdir()) == [file]


def test_programs_get_every_problem_as_json_on_stdout(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(TEXT.replace("slots", "slot"))
    result = validate(file, "--json")
    assert result.exit_code == 2 and result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer == {
        "file": str(file),
        "valid": False,
        "problems": [
            {
                "file": str(file),
                "line": 1,
                "column": 20,
                "path": "pool.slot",
                "message": "unknown key 'slot'",
                "hint": "did you mean 'slots'?",
                "scope": "file",
            }
        ],
    }
    file.write_text(TEXT)
    assert json.loads(validate(file, "--offline", "--json").stdout) == {
        "file": str(file),
        "valid": True,
        "problems": [],
    }


def test_a_directory_in_place_of_a_file_is_bad_input(tmp_path: Path) -> None:
    result = validate(tmp_path)
    assert result.exit_code == 2 and "cannot be read: Is a directory" in result.stderr
