"""`ebbtide demo --quick` for real: a pool, a replica, a job that parks and goes on; and how it is misused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli.main import cli


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.hunt
@pytest.mark.timeout(900)
def test_one_tide_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ebbtide.cli", "demo", "--quick", "--json", "--dir", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["steps_lost"], found["steps_repeated"], found["double_occupancy_s"]) == (0, 0, 0)
    assert found["steps"] > found["parked_at_step"] > 0 and found["tokens"] > 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert left.stdout == ""


@pytest.mark.parametrize(("words", "said"), [((), "--quick"), (("--quick", "--dir", "."), "is not empty")])
def test_misuse_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "mine").write_text("")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["demo", *words])
    assert result.exit_code == 2 and said in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
