"""A simulation that was broken off goes on where it was, and never with what something else came to."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import ebbtide
import ebbtide_autoscaler
import ebbtide_simulator
from ebbtide.config.sections.policy_section import PolicySection
from ebbtide_simulator import play
from ebbtide_simulator.command import simulate
from ebbtide_simulator.played.kept import Kept
from ebbtide_simulator.played.one_run import Played
from ebbtide_simulator.policies.knobs import USUAL
from ebbtide_simulator.scenes.given import load_inputs, load_ledger
from tests.autoscaler.simulator.ledgers import pool_file, tide, written
from tests.builders.simulate import files

__all__ = ["files"]

PLAYED = Played(
    {"slo_attainment": 0.1 + 0.2, "queue_s": {"mean": 1e-300, "p50": None}},
    {"training": (1, 2, 3), "free": ()},
    1.5,
    {"p50": 0.25},
    ({"slo_attainment": 0.999, "goodput_gpu_s": 2.0},),
)
MISUSED = 2


def kept_of(files: tuple[str, str, str], folder: Path, **run: Any) -> Kept:
    config, serving, jobs = files
    file, inputs = load_inputs(Path(config), [(Path(serving), 1.0, 0.0)], [(Path(jobs), 1.0, 0.0)])
    return Kept(folder, file.model_copy(update={"run": file.run.model_copy(update=run)}), inputs)


def test_what_was_kept_is_found_as_it_was(files: tuple[str, str, str], tmp_path: Path) -> None:
    kept_of(files, tmp_path).keep("ebbtide", 3, None, PLAYED)
    assert kept_of(files, tmp_path).find("ebbtide", 3, None) == PLAYED


def test_only_that_very_run_is_found(files: tuple[str, str, str], tmp_path: Path) -> None:
    kept_of(files, tmp_path).keep("ebbtide", 3, None, PLAYED)
    same = kept_of(files, tmp_path)
    assert same.find("ebbtide", 2, None) is None
    assert same.find("lyra", 3, None) is None
    assert same.find("ebbtide", 3, USUAL) is None
    assert same.find("ebbtide", 3, replace(USUAL, headroom=2.0)) is None
    assert kept_of(files, tmp_path, tick_s=7.0).find("ebbtide", 3, None) is None
    config, serving, jobs = files
    other = load_inputs(Path(config), [(Path(serving), 1.1, 0.0)], [(Path(jobs), 1.0, 0.0)])
    assert Kept(tmp_path, *other).find("ebbtide", 3, None) is None


@pytest.mark.parametrize("package", [ebbtide, ebbtide_autoscaler, ebbtide_simulator])
def test_nor_what_other_code_came_to(
    package: ModuleType, files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_of(files, tmp_path).keep("ebbtide", 3, None, PLAYED)
    other = tmp_path / "other"
    other.mkdir()
    (other / "policy.py").write_text("")
    monkeypatch.setattr(package, "__path__", [str(other)])
    assert kept_of(files, tmp_path).find("ebbtide", 3, None) is None


@pytest.mark.parametrize("left", ["", "{", "[]", '{"course": {}}', '{"course": 1}', '{"course": {"free": 1}}'])
def test_what_is_not_whole_is_not_there(files: tuple[str, str, str], tmp_path: Path, left: str) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    kept_of(files, runs).keep("ebbtide", 3, None, PLAYED)
    [path] = runs.iterdir()
    path.write_text(left)
    assert kept_of(files, runs).find("ebbtide", 3, None) is None


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_finds_it(files: tuple[str, str, str], tmp_path: Path, hash_seed: str) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    code = (
        "import sys; from pathlib import Path; from tests.autoscaler.simulator.played.test_kept import PLAYED, kept_of;"
        "kept_of(tuple(sys.argv[1:4]), Path(sys.argv[4])).keep('ebbtide', 0, None, PLAYED)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run([sys.executable, "-c", code, *files, str(runs)], check=True, env=environment)
    assert kept_of(files, runs).find("ebbtide", 0, None) == PLAYED


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The shared directory of a pool that has lived for six minutes."""
    folder, life = tmp_path / "shared", tide()
    written(folder / "ledger", life.events, [pool_file(folder), *life.records()])
    return folder


def kept_of_ledger(folder: Path, shared: Path, file: str = "{}\n") -> Kept:
    (shared / "if.yaml").write_text(file)
    return Kept(folder, *load_ledger(shared / "if.yaml", shared, 1.0, 0.0))


@pytest.mark.parametrize("hash_seed", ["1", "2", "3"])
def test_another_process_finds_what_is_of_a_ledger(shared: Path, tmp_path: Path, hash_seed: str) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    code = (
        "import sys; from pathlib import Path;"
        "from tests.autoscaler.simulator.played.test_kept import PLAYED, kept_of_ledger;"
        "kept_of_ledger(Path(sys.argv[1]), Path(sys.argv[2])).keep('ebbtide', 0, None, PLAYED)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run([sys.executable, "-c", code, str(runs), str(shared)], check=True, env=environment)
    assert kept_of_ledger(runs, shared).find("ebbtide", 0, None) == PLAYED


def test_of_a_ledger_too_only_that_very_run_is_found(shared: Path, tmp_path: Path) -> None:
    kept_of_ledger(tmp_path, shared).keep("ebbtide", 0, None, PLAYED)
    usual_s = PolicySection().grow_after_s  # the pool had five, as its ledger says
    for file in ("times: {start_s: 7}\n", f"policy: {{grow_after_s: {usual_s}}}\n"):
        assert kept_of_ledger(tmp_path, shared, file).find("ebbtide", 0, None) is None
    other = Kept(tmp_path, *load_ledger(shared / "if.yaml", shared, 1.1, 0.0))
    assert other.find("ebbtide", 0, None) is None
    assert kept_of_ledger(tmp_path, shared).find("ebbtide", 0, None) == PLAYED


def simulated(files: tuple[str, str, str], runs: Path, out: Path) -> tuple[dict[str, Any], str]:
    """Figures but for what varies, and what it told."""
    config, serving, jobs = files
    options = (config, "--serving", serving, "--jobs", jobs, "--policies", "ebbtide,static-p100", "--seeds", "2")
    found = CliRunner().invoke(simulate, [*options, "--processes", "2", "--keep", str(runs), "--json", str(out)])
    assert found.exit_code == 0, found.output
    figures = json.loads(out.read_text())
    del figures["took_s"]
    return figures, found.output


def test_broken_off_it_goes_on(files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, out = tmp_path / "a" / "runs", tmp_path / "out.json"
    figures, told = simulated(files, runs, out)
    assert "had ended before" not in told
    lost = sorted(runs.iterdir())[0]
    assert len(list(runs.iterdir())) == 4
    lost.unlink()
    again, told = simulated(files, runs, out)
    assert "3 runs of 4 had ended before" in told
    for timed in ("run_s", "decide_ms"):  # of the one that was played again
        assert figures.pop(timed).keys() == again.pop(timed).keys()
    assert again == figures
    monkeypatch.setattr(play, "play_one", lambda *_: pytest.fail("it plays"))
    whole, told = simulated(files, runs, out)
    assert "4 runs of 4 had ended before" in told
    assert {name: whole[name] for name in again} == again


def test_a_full_disk_loses_only_what_is_kept(
    files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Kept, "keep", full)
    _, told = simulated(files, tmp_path / "runs", tmp_path / "out.json")
    assert told.count("is not kept: [Errno 28] No space left on device") == 4


def test_a_file_is_no_folder(files: tuple[str, str, str], tmp_path: Path) -> None:
    config, serving, _ = files
    found = CliRunner().invoke(simulate, [config, "--serving", serving, "--keep", config])
    assert found.exit_code == MISUSED
    found = CliRunner().invoke(simulate, [config, "--serving", serving, "--keep", f"{config}/runs"])
    assert found.exit_code == MISUSED
    assert "cannot be a folder" in found.output
