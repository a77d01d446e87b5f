"""``ebbtide simulate`` as people run it, and misuse it."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ebbtide_autoscaler.command_simulate import simulate
from tests.autoscaler.simulate.test_traces import Columns, written

CONFIG = """
pool: {nodes: 1, gpus_per_node: 4}
endpoints: [{name: chat, prompt_tokens: 500, output_tokens: 100}]
run: {warm_up_s: 0}
"""
MINUTES = 90


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """A configuration, traffic and jobs, of an hour and a half."""
    (tmp_path / "pool.yaml").write_text(CONFIG)
    (tmp_path / "jobs").mkdir()
    at_s = np.arange(MINUTES) * 60.0
    wave = 600 + 500 * np.sin(at_s / 900)
    rates: Columns = {"t_s": at_s.tolist(), "rpm_mid": wave.tolist(), "rpm_sigma": [20.0] * MINUTES}
    jobs: Columns = {"submit_s": [0.0, 60.0, 120.0], "gpus": [1, 2, 1], "duration_s": [1800.0, 900.0, 3600.0]}
    return str(tmp_path / "pool.yaml"), str(written(tmp_path, rates)), str(written(tmp_path / "jobs", jobs))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, list(arguments))


def test_it_compares_and_writes_figures_and_a_page(files: tuple[str, str, str], tmp_path: Path) -> None:
    config, serving, jobs = files
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    names = "ebbtide,static-p100"
    found = run(
        *(config, "--serving", f"{serving}:1.2", "--jobs", jobs, "--policies", names, "--seeds", "2"),
        *("--json", str(out), "--report", str(page), "--processes", "2"),
    )
    assert found.exit_code == 0, found.output
    assert "4 GPUs, 1.5 hours, 3 jobs, 2 seeds" in found.output
    figures = json.loads(out.read_text())
    assert list(figures["policies"]) == ["ebbtide", "static-p100"]
    ours = figures["policies"]["ebbtide"]
    assert 0.0 <= ours["slo_attainment"]["mean"] <= 1.0 and ours["goodput_vs_bound"]["mean"] <= 1.0
    assert ours["double_allocated_gpu_s"] == {"mean": 0.0, "ci95": 0.0}
    assert figures["policies"]["static-p100"]["goodput_vs_static"]["mean"] == 1.0
    assert page.read_text().count("<svg") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "magic"), "no policy magic: there are ebbtide"),
        (("--serving", "nothing.parquet"), "nothing.parquet: no such file"),
        (("--jobs", "JOBS:1.5"), "a share of 1.5 of its jobs cannot be kept"),
        (("--serving", "SERVING"), "2 serving traces for 1 endpoints"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    files: tuple[str, str, str], arguments: tuple[str, ...], message: str
) -> None:
    config, serving, jobs = files
    given = [one.replace("SERVING", serving).replace("JOBS", jobs) for one in arguments]
    found = run(config, "--serving", serving, *given)
    assert found.exit_code != 0
    assert message in found.output


def test_more_demand_than_the_pool_is_refused_with_a_scale_that_fits(files: tuple[str, str, str]) -> None:
    config, serving, _ = files
    found = run(config, "--serving", f"{serving}:100")
    assert "the pool has 4; scale it by less than" in found.output


def test_a_wrong_file_is_told_of_with_line_and_column(files: tuple[str, str, str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("pool: {nodes: 1, gpus_per_node: 2}\nendpoints: [{name: x, engine: gpt}]\n")
    found = run(str(tmp_path / "bad.yaml"), "--serving", files[1])
    assert "bad.yaml:2:13" in found.output and "no engine gpt" in found.output
