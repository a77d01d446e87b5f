"""The script itself, in its short form on a CPU: a real cluster, a real vLLM, a job parked in place, a control run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.gpu.line import __main__ as line
from ebbtide.system.modes import Place

ROOT = Path(__file__).parents[3]
BUDGET_S = 480.0  # 150 s on 2 cores, other tests beside


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.hunt  # the short form: the demo, which plays the same acts on three slots, and the tests of its parts
@pytest.mark.timeout(900)
def test_the_short_script_plays_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.line", "--dry-run-cpu", "--phases", "short"]
    done = subprocess.run(
        [*command, "--budget-s", str(BUDGET_S), "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found = json.loads((tmp_path / "gpu_line_dry_run.json").read_text())
    figures = {one["phase"]: one["figures"] for one in found["phases"]}
    assert figures["burst"]["parks"] == 1 and figures["burst"]["restarts"] == 0
    assert figures["burst"]["answered"] == figures["burst"]["requests"]
    assert figures["control"]["losses_equal"] and figures["control"]["samples_equal"]
    told = {Place.CACHES, Place.FLAT_FORM, Place.LOAD, Place.NVML, Place.SLEEP, Place.STORAGE, Place.VISIBLE}
    assert set(found["modes"]) >= {str(place) for place in told}
    assert (tmp_path / "gpu_line_dry_run_logs.tar.gz").stat().st_size > 10_000


@pytest.mark.ray
@pytest.mark.hunt
@pytest.mark.timeout(300)
def test_a_budget_that_is_too_short_ends_all_of_it_in_time(tmp_path: Path) -> None:
    began_s = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.line", "--dry-run-cpu", "--phases", "short", "--budget-s", "60"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), "--work", str(tmp_path / "w")], cwd=ROOT, capture_output=True, text=True
    )
    assert time.monotonic() - began_s < 75, "it must end by itself"
    assert done.returncode == 1
    found = json.loads((tmp_path / "gpu_line_dry_run.json").read_text())
    assert found["cut_off"] or any(one["state"] == "skipped" for one in found["phases"])
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "w")], capture_output=True, text=True)
    assert left.stdout == "", "processes are left"


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_has_gpu", lambda: False)
    done = CliRunner().invoke(line.main, ["--out", str(tmp_path)])
    assert done.exit_code == 1 and "try --dry-run-cpu" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--phases", "brust"], "there is no brust; there are: machine, up"),
        (["--budget-s", "5"], "60"),
        (["--work", "."], "is there already"),
    ],
)
def test_a_mistake_gets_a_clear_error(words: list[str], said: str) -> None:
    done = CliRunner().invoke(line.main, ["--dry-run-cpu", *words])
    assert done.exit_code != 0 and said in done.output
